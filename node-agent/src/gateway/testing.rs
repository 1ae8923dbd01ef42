//! Models and moments for this room's unit tests.

use std::time::{Duration, Instant};

use http::HeaderValue;
use slurm_serve_proto::v1::{Cause, Ending, Model, ModelState};

use super::registry::{Now, Registry, Snapshot};
use super::replica::Announced;

/// The wall's clock when a test begins.
pub const START_MS: i64 = 1_000_000_000_000;

/// `after` the begin of the test.
pub struct Clock(Instant);

impl Clock {
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn at(&self, after: Duration) -> Now {
        Now {
            instant: self.0 + after,
            unix_ms: START_MS + i64::try_from(after.as_millis()).unwrap(),
        }
    }

    pub fn secs(&self, after: u64) -> Now {
        self.at(Duration::from_secs(after))
    }
}

/// A published model of ada's, in job 7 on n1.
pub fn announced(name: &str, generation: &str, state: ModelState) -> Announced {
    let failed = state == ModelState::Failed;
    let ending = Ending {
        cause: Cause::GpuMemory.into(),
        text: "GPU 0 has 3 GiB free, 80 are needed".into(),
        ..Ending::default()
    };
    let model = Model {
        name: name.into(),
        owner: "ada".into(),
        node: "n1".into(),
        job_id: 7,
        generation: generation.into(),
        state: state.into(),
        state_since_ms: START_MS,
        base_url: "http://127.0.0.1:18100/v1".into(),
        published: true,
        ending: failed.then_some(ending),
        ..Model::default()
    };
    let bearer = (state == ModelState::Ready).then(|| HeaderValue::from_static("Bearer k"));
    Announced { model, bearer }
}

pub fn ready(name: &str, generation: &str) -> Announced {
    announced(name, generation, ModelState::Ready)
}

/// A snapshot with a lease of 10 s.
pub fn snapshot(models: Vec<Announced>) -> Snapshot {
    Snapshot {
        lease: Duration::from_secs(10),
        models,
    }
}

/// A registry with the node n1, connected, and these models on it.
pub fn registry(models: Vec<Announced>, now: Now) -> Registry {
    let mut registry = Registry::default();
    registry.add_node("n1", now);
    registry.snapshot("n1", snapshot(models), now);
    registry
}
