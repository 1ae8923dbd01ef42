//! Every way a job can end and every part that can die: a table of scenarios, each played on a site while clients ask without pause, and
//! each checked in the same way.
//!
//! ```text
//!   cast: a job with a model ──▶ watch: clients, and a look at the catalog every few milliseconds
//!                                  │ act        strike() is the moment from which a bound counts
//!                                  │ fate       stays · ends · fails · leaves and returns · comes anew
//!                                  │ mend       what was broken is put right
//!                                  ▼
//!   told (`sserve status`, the server's log, the job's output), the job's own exit code, nothing left, no node drained
//! ```
//!
//! `docs/endings.md` is made from this table and from what the last recorded runs measured; [`soak`] plays scenarios at random.

mod page;
mod report;
mod row;
mod rows;
mod run;
mod scene;
pub mod soak;
mod watch;

pub use page::{Run, keep};
pub use report::{Measured, Verdict, table};
pub use row::{Bound, Fate, Group, JobFate, Row};
pub use rows::{all, groups};
pub use run::play;
pub use scene::Scene;
pub use watch::Watch;
