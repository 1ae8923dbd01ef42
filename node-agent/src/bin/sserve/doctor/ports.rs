//! Whether the models' ports are free of what else uses ports: outgoing connections, srun, Slurm's daemons.

use slurm_serve::config::PortRange;
use slurm_serve::slurm_conf::SlurmConf;

use super::finding::Findings;
use super::host::{Host, Role};

const CHECK: &str = "ports";

/// Looks at all of them.
pub fn look(host: &Host, found: &mut Findings) {
    if host.role == Role::Login {
        return;
    }
    let ephemeral = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let agent = &host.config.agent;
    for (name, range) in [
        ("agent.ports", agent.ports),
        ("agent.internal_ports", agent.internal_ports),
    ] {
        let users = users(&ephemeral, host.slurm.as_ref());
        judge(name, range, &users, found);
    }
    let lowest = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let lowest = lowest
        .ok()
        .and_then(|text| text.trim().parse::<u16>().ok())
        .unwrap_or(1024);
    let own = agent
        .listen
        .rsplit_once(':')
        .and_then(|(_, port)| port.parse::<u16>().ok());
    if let Some(port) = own.filter(|port| *port >= lowest) {
        found.warn(
            CHECK,
            format!(
                "agent.listen is {}: any user's program may take port {port} while the agent is away",
                agent.listen
            ),
            format!("take a port below {lowest} (net.ipv4.ip_unprivileged_port_start)"),
        );
    }
}

/// Who else uses which ports.
fn users(ephemeral: &str, slurm: Option<&SlurmConf>) -> Vec<(String, PortRange)> {
    let mut users = Vec::new();
    let mut add = |name: &str, first: Option<u16>, last: Option<u16>| {
        if let (Some(first), Some(last)) = (first, last) {
            users.push((format!("{name} {first}-{last}"), PortRange { first, last }));
        }
    };
    let number = |text: Option<&str>| text.and_then(|text| text.trim().parse().ok());
    let mut local = ephemeral.split_whitespace();
    add(
        "net.ipv4.ip_local_port_range",
        number(local.next()),
        number(local.next()),
    );
    for key in ["SrunPortRange", "SlurmdPort", "SlurmctldPort"] {
        let value = slurm.and_then(|conf| conf.get(key)).unwrap_or_default();
        let (first, last) = value.split_once('-').unwrap_or((value, value));
        // `SrunPortRange = 0-0` means none.
        if first.trim() != "0" {
            add(key, number(Some(first)), number(Some(last)));
        }
    }
    users
}

fn judge(name: &str, range: PortRange, users: &[(String, PortRange)], found: &mut Findings) {
    let shown = String::from(range);
    let mut clash = false;
    for (user, _) in users
        .iter()
        .filter(|(_, other)| range.first <= other.last && other.first <= range.last)
    {
        clash = true;
        found.warn(
            CHECK,
            format!("{name} {shown} overlaps {user}: a port may be taken when a model wants it; it then takes the next"),
            format!("move {name} out of it"),
        );
    }
    if !clash {
        found.ok(
            CHECK,
            format!("{name} {shown}: apart from outgoing connections, srun and Slurm's daemons"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn ranges_that_meet_are_named() {
        let conf = SlurmConf::new("SrunPortRange = 0-0\nSlurmdPort = 6818\nSlurmctldPort = 6817-6819\n");
        let all = users("32768\t60999\n", Some(&conf));
        assert_eq!(all.len(), 3, "{all:?}");
        let verdicts = |first, last| {
            let mut found = Findings::default();
            judge("agent.ports", PortRange { first, last }, &all, &mut found);
            (found.count(Verdict::Ok), found.count(Verdict::Warn))
        };
        assert_eq!(verdicts(18100, 18199), (1, 0));
        assert_eq!(verdicts(32000, 33000), (0, 1));
        assert_eq!(verdicts(6800, 6818), (0, 2));
    }
}
