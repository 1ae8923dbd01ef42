//! Xids as the driver's events tell them.

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::event::EventSet;

use super::calls::Calls;
use super::child::News;
use super::read::Card;

/// Events taken at once, at most: the rest waits for the next sample.
const AT_ONCE: usize = 64;

/// The cards that are listened to.
pub struct Xids<'nvml>(Option<EventSet<'nvml>>);

impl<'nvml> Xids<'nvml> {
    /// To all cards that tell. Where none does, the kernel's log is left.
    pub fn listen(nvml: &'nvml Nvml, cards: &[Card<'nvml>], calls: &mut Calls) -> Self {
        let mut set = calls.ask(0, "nvmlEventSetCreate", || nvml.create_event_set());
        for card in cards {
            let device = card.device();
            let told = calls.ask(card.index(), "nvmlDeviceGetSupportedEventTypes", || {
                device.supported_event_types()
            });
            if !told.is_some_and(|told| told.contains(EventTypes::CRITICAL_XID_ERROR)) {
                continue;
            }
            let Some(open) = set.take() else { break };
            // The set is gone with a card that says it tells and then refuses.
            set = device.register_events(EventTypes::CRITICAL_XID_ERROR, open).ok();
        }
        Self(set)
    }

    /// What came since the last call; waits for nothing.
    pub fn news(&self, calls: &mut Calls) -> News {
        let mut news = News::new();
        let Some(set) = &self.0 else { return news };
        for _ in 0..AT_ONCE {
            // An error is a timeout, as a rule, or a lost card, which is seen elsewhere.
            let Ok(event) = calls.run(0, "nvmlEventSetWait", || set.wait(0)) else {
                break;
            };
            if let Some(XidError::Value(xid)) = event.event_data
                && let (Ok(uuid), Ok(xid)) = (event.device.uuid(), u32::try_from(xid))
            {
                *news.entry(uuid).or_default().entry(xid).or_default() += 1;
            }
        }
        news
    }
}
