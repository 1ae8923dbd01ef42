//! Names behind uids. NSS may ask a directory far away, so each question has a thread and an end.

use std::time::Duration;

use nix::unistd::{Group, Uid, User, getgrouplist};

/// How long a name service may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The user with this uid. The error is one line.
pub async fn by_uid(uid: u32) -> Result<User, String> {
    let found = ask(move || User::from_uid(Uid::from_raw(uid))).await?;
    found
        .map_err(|e| format!("uid {uid} cannot be looked up on this node: {e}"))?
        .ok_or_else(|| {
            format!("no user has uid {uid} on this node; does identity resolve here (getent passwd {uid})?")
        })
}

/// The names of all groups of a user; those without a name are left out.
pub async fn groups_of(user: User) -> Result<Vec<String>, String> {
    let names = ask(move || {
        let name = std::ffi::CString::new(user.name).unwrap_or_default();
        let groups = getgrouplist(&name, user.gid).unwrap_or_default();
        groups
            .into_iter()
            .filter_map(|gid| Some(Group::from_gid(gid).ok()??.name))
            .collect()
    });
    names.await
}

async fn ask<T: Send + 'static>(question: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    match tokio::time::timeout(TIMEOUT, tokio::task::spawn_blocking(question)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(e)) => Err(format!("the name service failed: {e}")),
        Err(_) => Err(format!("the name service did not answer within {TIMEOUT:?}")),
    }
}
