//! Whose questions are being answered: a user's own wait for each other.
//!
//! To open or launch a model may take some of Slurm's commands, run by root and outside of any job. Without this a user who asks for
//! thousands of jobs at once would have thousands of them running.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Questions of one user that are worked on at a time.
const EACH: usize = 4;

/// The users who ask.
#[derive(Debug, Default)]
pub struct Turns(Mutex<HashMap<u32, Arc<Semaphore>>>);

impl Turns {
    /// Resolves when it is the turn of this question of `uid`; it lasts until the permit is dropped. `None` never comes: no turn is closed.
    pub async fn of(&self, uid: u32) -> Option<OwnedSemaphorePermit> {
        let turns = {
            let mut users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Those who ask nothing are not remembered.
            users.retain(|_, turns| Arc::strong_count(turns) > 1);
            users
                .entry(uid)
                .or_insert_with(|| Arc::new(Semaphore::new(EACH)))
                .clone()
        };
        turns.acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn a_users_questions_wait_for_his_own_alone() {
        let turns = Turns::default();
        let mut held = Vec::new();
        for _ in 0..EACH {
            held.push(turns.of(7).await);
        }
        let next = turns.of(7);
        tokio::pin!(next);
        assert!((&mut next).now_or_never().is_none());
        assert!(turns.of(8).now_or_never().is_some(), "somebody else's turn");
        held.pop();
        assert!(next.now_or_never().is_some());
    }
}
