//! Checks of the network: connections to servers, the MTU of the route, and the clock of a store.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_client::{Authority, Url};

use super::{Context, Finding, Target, read};
use crate::quantity;

const PATIENCE: Duration = Duration::from_secs(5);
/// Clock skew in seconds from which stores refuse signed requests.
const SKEW_REFUSED: u64 = 15 * 60;
const SKEW_NOTED: u64 = 60;
/// Maximum number of bytes of a response to read: enough for its headers.
const HEAD: u64 = 16 << 10;

fn url<'a>(context: &'a Context<'_>) -> Option<&'a Url> {
    match &context.target {
        Some(Target::Server(url)) => Some(url),
        _ => None,
    }
}

/// Resolves the name of each server, and connects to it.
pub(super) fn server(context: &Context<'_>) -> Vec<Finding> {
    let servers = url(context).map(Url::servers).unwrap_or_default();
    servers.iter().map(reach).collect()
}

fn reach(server: &Authority) -> Finding {
    let name = format!("{}:{}", server.host, server.port);
    let begin = Instant::now();
    let addresses = match (server.host.as_str(), server.port).to_socket_addrs() {
        Ok(addresses) => addresses.collect::<Vec<_>>(),
        Err(error) => {
            let what = format!("\"{name}\" cannot be resolved: {error}");
            return Finding::problem(what, "check the name and the DNS of this machine");
        }
    };
    let mut last = None;
    for address in &addresses {
        match TcpStream::connect_timeout(address, PATIENCE) {
            Ok(_) => {
                let took = quantity::duration(begin.elapsed());
                return Finding::ok(format!("{name} answers at {address} after {took}"));
            }
            Err(error) => last = Some(error),
        }
    }
    let why = last.map_or_else(|| "it has no address".to_owned(), |error| error.to_string());
    Finding::problem(
        format!("no connection to \"{name}\": {why}"),
        "check that forebay serve runs there and listens beyond loopback, and the firewall",
    )
}

/// Checks the MTU of the interface of the route to each server.
pub(super) fn mtu(context: &Context<'_>) -> Vec<Finding> {
    let servers = url(context).map(Url::servers).unwrap_or_default();
    let routes = read("/proc/net/route").unwrap_or_default();
    let found = servers.iter().filter_map(|server| {
        let mut addresses = (server.host.as_str(), server.port).to_socket_addrs().ok()?;
        let address = addresses.find_map(|address| match address.ip() {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(_) => None,
        })?;
        let interface = match address.is_loopback() {
            true => "lo".to_owned(),
            false => interface(&routes, address)?,
        };
        let mtu = read(&format!("/sys/class/net/{interface}/mtu"))?
            .parse()
            .ok()?;
        Some(judge_mtu(&interface, mtu))
    });
    let mut findings: Vec<Finding> = found.collect();
    findings.dedup();
    findings
}

fn judge_mtu(interface: &str, mtu: u32) -> Finding {
    let text = format!("{mtu} bytes on {interface}");
    match mtu {
        ..1500 => Finding::warning(
            text,
            "raise it to 1500 or more: small packets cost CPU time",
        ),
        1500..9000 => Finding::ok(format!(
            "{text}; 9000 saves CPU time above 10 Gbit/s, if all switches have it"
        )),
        _ => Finding::ok(text),
    }
}

/// Returns the interface of the longest matching prefix in `/proc/net/route`, which has little-endian hexadecimal addresses.
fn interface(routes: &str, address: Ipv4Addr) -> Option<String> {
    let address = u32::from_le_bytes(address.octets());
    let matching = routes.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let hex = |field: usize| u32::from_str_radix(fields.get(field)?, 16).ok();
        let (destination, mask) = (hex(1)?, hex(7)?);
        (address & mask == destination).then(|| (mask.count_ones(), fields[0].to_owned()))
    });
    matching.max_by_key(|(bits, _)| *bits).map(|(_, name)| name)
}

/// Compares the clock of this machine with that of the store. Stores with TLS are not checked.
pub(super) fn clock(context: &Context<'_>) -> Vec<Finding> {
    let Some(Target::Dataset(location)) = &context.target else {
        return Vec::new();
    };
    if !location.is_remote() {
        return Vec::new();
    }
    let text = location.to_string();
    let endpoint = context.store.endpoint.as_deref().unwrap_or(&text);
    let Some(rest) = endpoint.strip_prefix("http://") else {
        let what = "not compared: the store speaks TLS. It would refuse signed requests of a clock that is 15 minutes off";
        return vec![Finding::ok(what)];
    };
    let authority = rest.split('/').next().unwrap_or(rest);
    vec![match date_of(authority) {
        Some((theirs, ours)) => judge_skew(theirs.abs_diff(ours)),
        None => Finding::ok("not compared: the store sends no date"),
    }]
}

fn judge_skew(seconds: u64) -> Finding {
    let text = format!("{seconds} s beside the store's");
    let remedy = "synchronize the clock of this machine (NTP)";
    match seconds {
        SKEW_REFUSED.. => Finding::problem(text, remedy),
        SKEW_NOTED..SKEW_REFUSED => Finding::warning(text, remedy),
        _ => Finding::ok(text),
    }
}

/// Returns two Unix times in seconds: that of the server's `Date` header, and that of this machine.
fn date_of(authority: &str) -> Option<(u64, u64)> {
    let host = authority.rsplit('@').next()?;
    let has_port = host
        .rsplit(':')
        .next()
        .is_some_and(|port| port.parse::<u16>().is_ok());
    let address = if has_port {
        host.to_owned()
    } else {
        format!("{host}:80")
    };
    let address: SocketAddr = address.to_socket_addrs().ok()?.next()?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    let request = format!("HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    // A read error after the headers does no harm.
    let _ = stream.take(HEAD).read_to_end(&mut answer);
    let ours = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
    let text = String::from_utf8_lossy(&answer);
    let date = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("date")
            .then(|| value.trim().to_owned())
    })?;
    Some((parse_date(&date)?, ours))
}

/// Parses an HTTP date such as `Sun, 06 Nov 1994 08:49:37 GMT` into a Unix time in seconds.
fn parse_date(text: &str) -> Option<u64> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let [_, day, month, year, time, "GMT"] = fields[..] else {
        return None;
    };
    let month = MONTHS
        .find(month)
        .filter(|at| month.len() == 3 && at % 3 == 0)? as u64
        / 3;
    let (day, year): (u64, u64) = (day.parse().ok()?, year.parse().ok()?);
    let mut parts = time.split(':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
    if !(1970..9999).contains(&year)
        || !(1..=31).contains(&day)
        || hour > 23
        || minute > 59
        || second > 60
    {
        return None;
    }
    // Years are counted from March 1, so that the leap day is the last day of a year.
    let (year, month) = if month < 2 {
        (year - 1, month + 10)
    } else {
        (year, month - 2)
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    Some(days.checked_sub(719_469)? * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::Level;
    use super::*;

    #[test]
    fn http_dates_are_parsed() {
        assert_eq!(parse_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(
            parse_date("Sun, 06 Nov 1994 08:49:37 GMT"),
            Some(784_111_777)
        );
        assert_eq!(
            parse_date("Thu, 29 Feb 2024 23:59:59 GMT"),
            Some(1_709_251_199)
        );
        assert_eq!(
            parse_date("Fri, 01 Mar 2024 00:00:00 GMT"),
            Some(1_709_251_200)
        );
        for bad in [
            "",
            "06 Nov 1994",
            "Sun, 06 anF 1994 08:49:37 GMT",
            "Sun, 99 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(parse_date(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_clock_is_compared_with_the_date_header() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                let mut some = [0; 512];
                let count = stream.read(&mut some).unwrap();
                asked.extend_from_slice(&some[..count]);
            }
            stream
                .write_all(b"HTTP/1.1 403 No\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n")
                .unwrap();
        });
        let (theirs, ours) = date_of(&authority).unwrap();
        server.join().unwrap();
        assert_eq!(theirs, 784_111_777);
        assert_eq!(judge_skew(ours - theirs).level, Level::Problem);
        assert_eq!(judge_skew(100).level, Level::Warning);
        assert_eq!(judge_skew(3).level, Level::Ok);
    }

    #[test]
    fn the_longest_matching_route_is_used() {
        let routes = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                      eth0 00000000 0101A8C0 0003 0 0 0 00000000 0 0 0\n\
                      ib0 0000000A 00000000 0001 0 0 0 000000FF 0 0 0\n";
        assert_eq!(
            interface(routes, [10, 1, 2, 3].into()).as_deref(),
            Some("ib0")
        );
        assert_eq!(
            interface(routes, [8, 8, 8, 8].into()).as_deref(),
            Some("eth0")
        );
        assert_eq!(interface("", [8, 8, 8, 8].into()), None);
        assert_eq!(judge_mtu("x", 1400).level, Level::Warning);
        assert_eq!(judge_mtu("x", 1500).level, Level::Ok);
    }

    #[test]
    fn an_unreachable_server_is_a_problem() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = |port| Authority {
            host: "127.0.0.1".to_owned(),
            port,
        };
        let port = listener.local_addr().unwrap().port();
        assert_eq!(reach(&server(port)).level, Level::Ok);
        drop(listener);
        let gone = reach(&server(port));
        assert_eq!(gone.level, Level::Problem);
        assert!(gone.message.contains("no connection"), "{gone:?}");
    }
}
