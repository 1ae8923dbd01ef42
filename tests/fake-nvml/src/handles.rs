//! What the library hands out to stand for its things. No pointer of it is ever followed, so a wrong one is an error and nothing worse.

use nvml_wrapper_sys::bindings::nvmlDevice_t;

use crate::{Gpu, MigInstance, Scenario};

/// A device that was handed out. It outlives changes of the scenario: only the name is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceKey {
    /// Of a GPU or of a MIG instance.
    pub uuid: String,
}

impl DeviceKey {
    /// A GPU's.
    pub fn of(gpu: &Gpu) -> Self {
        Self {
            uuid: gpu.uuid.clone(),
        }
    }

    /// A MIG instance's.
    pub fn of_instance(instance: &MigInstance) -> Self {
        Self {
            uuid: instance.uuid.clone(),
        }
    }

    /// Which GPU it is or belongs to, and which instance of it it is.
    pub fn find(&self, scenario: &Scenario) -> Option<(usize, Option<usize>)> {
        scenario.gpus.iter().enumerate().find_map(|(index, gpu)| {
            if gpu.uuid == self.uuid {
                return Some((index, None));
            }
            let instance = gpu.instances().iter().position(|mig| mig.uuid == self.uuid)?;
            Some((index, Some(instance)))
        })
    }
}

/// All devices that were handed out.
#[derive(Default)]
pub struct Handles(Vec<DeviceKey>);

impl Handles {
    /// The same for the same device.
    pub fn hand_out(&mut self, key: DeviceKey) -> nvmlDevice_t {
        let place = self.0.iter().position(|known| *known == key).unwrap_or_else(|| {
            self.0.push(key);
            self.0.len() - 1
        });
        to_pointer(place)
    }

    /// What a handle stands for.
    pub fn get(&self, handle: nvmlDevice_t) -> Option<&DeviceKey> {
        self.0.get(to_number(handle)?)
    }
}

/// A pointer that carries a number; never null.
pub fn to_pointer<T>(number: usize) -> *mut T {
    std::ptr::without_provenance_mut((number + 1) << 4)
}

/// The number that a pointer carries.
pub fn to_number<T>(pointer: *mut T) -> Option<usize> {
    let address = pointer.addr();
    (address & 0xF == 0).then_some(address >> 4)?.checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_the_same_for_the_same_device() {
        let key = |uuid: &str| DeviceKey { uuid: uuid.into() };
        let mut handles = Handles::default();
        let first = handles.hand_out(key("a"));
        assert_ne!(handles.hand_out(key("b")), first);
        assert_eq!(handles.hand_out(key("a")), first);
        assert_eq!(handles.get(first), Some(&key("a")));
    }

    #[test]
    fn a_wrong_pointer_is_nothing() {
        let handles = Handles::default();
        assert_eq!(handles.get(std::ptr::null_mut()), None);
        assert_eq!(handles.get(std::ptr::without_provenance_mut(0x1234_5678)), None);
        assert_eq!(to_number(to_pointer::<u8>(7)), Some(7));
    }
}
