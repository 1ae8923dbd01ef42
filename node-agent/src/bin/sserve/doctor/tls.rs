//! What the agent's port with TLS is made of: read as the agent reads it, which goes on with what it had when a file goes bad.

use std::time::{Duration, SystemTime};

use slurm_serve::rpc;

use super::finding::Findings;
use super::host::{Host, Role};

const CHECK: &str = "tls";
const DAY: u64 = 24 * 3600;
/// Time enough to renew it by hand.
const SOON: u64 = 14 * DAY;

/// Says nothing where TLS is off.
pub fn look(host: &Host, found: &mut Findings) {
    let config = &host.config;
    let tls = &config.agent.tls;
    if host.role == Role::Login || tls.listen.is_empty() {
        return;
    }
    if !nix::unistd::geteuid().is_root() {
        return found.skip(CHECK, "only root can read its key and tokens");
    }
    let todo =
        "put it right; until then the agent goes on with what it read before, and a restart of it fails";
    match rpc::tls_expiry(tls, &config.access) {
        Ok(expires) => judge(
            &tls.listen,
            expires,
            SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default(),
            found,
        ),
        Err(why) => found.fail(CHECK, why, todo),
    }
}

fn judge(listen: &str, expires: Duration, now: Duration, found: &mut Findings) {
    let left = expires.saturating_sub(now).as_secs();
    let renew = "replace agent.tls.cert and agent.tls.key; nothing needs a restart";
    match left {
        0 => found.fail(CHECK, "the certificate of agent.tls.cert has expired", renew),
        1..SOON => found.warn(
            CHECK,
            format!(
                "the certificate of agent.tls.cert expires in {} h",
                left.div_ceil(3600)
            ),
            renew,
        ),
        _ => found.ok(
            CHECK,
            format!(
                "{listen}: files in order, the certificate lasts {} days",
                left / DAY
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn a_certificate_is_told_of_before_it_expires() {
        let verdict = |left: i64| {
            let now = 100 * DAY;
            let mut found = Findings::default();
            let expires = now.checked_add_signed(left).unwrap();
            judge(
                "x",
                Duration::from_secs(expires),
                Duration::from_secs(now),
                &mut found,
            );
            found.0[0].verdict
        };
        assert_eq!(verdict(-5), Verdict::Fail);
        assert_eq!(verdict(0), Verdict::Fail);
        assert_eq!(verdict(3600), Verdict::Warn);
        assert_eq!(verdict(30 * 24 * 3600), Verdict::Ok);
    }
}
