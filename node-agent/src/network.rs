//! An address or a network, as settings write it: `10.0.0.5`, `10.0.0.0/24`, `fd00::/8`.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// One or many addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network(IpNet);

impl Network {
    /// Is this address in it? One of version 4 that came in the shape of version 6 is what it is.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl std::str::FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let one = text.parse::<IpAddr>().map(IpNet::from);
        one.or_else(|_| text.parse::<IpNet>())
            .map(Self)
            .map_err(|_| format!("{text:?} is no address; write \"10.0.0.5\" or \"10.0.0.0/24\""))
    }
}

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Network> for String {
    fn from(network: Network) -> Self {
        network.to_string()
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.prefix_len() == self.0.max_prefix_len() {
            true => write!(f, "{}", self.0.addr()),
            false => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_networks_are_read_and_names_are_not() {
        let inside = |network: &str, address: &str| {
            let network: Network = network.parse().unwrap();
            network.contains(address.parse().unwrap())
        };
        assert!(inside("10.0.0.5", "10.0.0.5") && !inside("10.0.0.5", "10.0.0.6"));
        assert!(inside("10.0.0.0/24", "10.0.0.200") && inside("10.0.0.5", "::ffff:10.0.0.5"));
        assert_eq!("10.0.0.5".parse::<Network>().unwrap().to_string(), "10.0.0.5");
        assert!(
            "proxy.example"
                .parse::<Network>()
                .unwrap_err()
                .contains("proxy.example")
        );
    }
}
