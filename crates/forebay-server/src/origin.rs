//! Grouping of addresses for limits and shares.

use std::net::{IpAddr, Ipv6Addr};

/// The address that limits count. For IPv6 it is the /64 network, since one machine has all of its
/// addresses.
pub fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => {
            Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into()
        }
        canonical => canonical,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_machine_are_one_origin() {
        let of = |text: &str| origin(text.parse().unwrap()).to_string();
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), of("2001:db8:1:2::1"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), "10.0.0.1");
        assert_eq!(of("::1"), "::1");
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
