//! What one loaded library knows.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::calls::Calls;
use crate::events::EventSets;
use crate::file::ScenarioFile;
use crate::handles::Handles;
use crate::samples::Samples;
use crate::{ErrorCode, Scenario};

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| Mutex::new(State::new()));

/// The state, for a moment: nothing that waits may hold it.
pub fn state() -> MutexGuard<'static, State> {
    // A panic in another call says nothing about this one.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The one state of a library.
pub struct State {
    file: ScenarioFile,
    calls: Calls,
    /// How many initialised it and have not shut it down.
    users: u32,
    /// The first initialisation.
    born: Option<(Instant, SystemTime)>,
    pub handles: Handles,
    pub events: EventSets,
    pub samples: Samples,
}

impl State {
    fn new() -> Self {
        Self {
            file: ScenarioFile::new(crate::location::scenario()),
            calls: Calls::default(),
            users: 0,
            born: None,
            handles: Handles::default(),
            events: EventSets::default(),
            samples: Samples::default(),
        }
    }

    /// Counts a call.
    pub fn count(&mut self, function: &'static str) {
        self.calls.count(function);
    }

    /// The scenario of this moment.
    pub fn scenario(&mut self) -> Result<Arc<Scenario>, ErrorCode> {
        let scenario = self.file.current().ok_or(ErrorCode::DRIVER_NOT_LOADED)?;
        if let Some(path) = &scenario.calls_to {
            self.calls.write_if_due(path);
        }
        Ok(Arc::clone(scenario))
    }

    /// Whether there is a driver at all.
    pub fn has_driver(&self) -> bool {
        self.file.exists()
    }

    /// One user more.
    pub fn start(&mut self) {
        self.users += 1;
        self.born
            .get_or_insert_with(|| (Instant::now(), SystemTime::now()));
    }

    /// One user less.
    pub fn stop(&mut self) -> Result<(), ErrorCode> {
        self.users = self.users.checked_sub(1).ok_or(ErrorCode::UNINITIALIZED)?;
        if self.users == 0 {
            self.events.clear();
        }
        if let Some(path) = self.file.current().and_then(|scenario| scenario.calls_to.clone()) {
            self.calls.write(&path);
        }
        Ok(())
    }

    /// Whether anybody uses it.
    pub fn is_started(&self) -> bool {
        self.users > 0
    }

    /// The scenario's time.
    pub fn now(&self, scenario: &Scenario) -> f64 {
        match (scenario.started_unix_s, self.born) {
            (Some(start), _) => unix(SystemTime::now()) - start,
            (None, Some((born, _))) => born.elapsed().as_secs_f64(),
            (None, None) => 0.0,
        }
    }

    /// The scenario's time of the first initialisation.
    pub fn since(&self, scenario: &Scenario) -> f64 {
        match (scenario.started_unix_s, self.born) {
            (Some(start), Some((_, born))) => unix(born) - start,
            _ => 0.0,
        }
    }
}

fn unix(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
