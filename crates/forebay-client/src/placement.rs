//! Assigns streams to servers: rendezvous hashing with bounded loads. No IO.
//!
//! Every process that knows the list of servers computes the same assignment without coordination.
//! Each stream ranks all servers by a hash of both names and takes the first that has capacity;
//! streams are placed in the order of their ranks, and no server gets more than its even share. When a server
//! leaves or joins, few of the other streams move.

use forebay_batch::digest::value;

/// Limit of streams times servers for bounded loads, which require placing all preceding streams.
/// Above it, plain rendezvous hashing is nearly even.
const MOST_WORK: u64 = 1 << 20;

/// A stream to place: one rank of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unit<'a> {
    /// Identifies the run whose streams are placed together.
    pub(crate) run: &'a str,
    pub(crate) number: u64,
    pub(crate) count: u64,
}

/// Score of a server for a stream: FNV-1a of the names, mixed with the number. It must not change,
/// since processes of other versions have to agree.
fn score(server: &str, run: &str, number: u64) -> u64 {
    let bytes = server.bytes().chain([0]).chain(run.bytes());
    let names = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    value(names, number)
}

/// Index of the `allowed` server with the highest score for `number`.
fn best(
    servers: &[&str],
    run: &str,
    number: u64,
    allowed: impl Fn(usize) -> bool,
) -> Option<usize> {
    (0..servers.len())
        .filter(|&i| allowed(i))
        // The name breaks ties between equal scores.
        .max_by_key(|&i| (score(servers[i], run, number), servers[i]))
}

/// Index in `servers` of the server of `unit`; `None` if there are none.
pub(crate) fn choose(servers: &[&str], unit: &Unit<'_>) -> Option<usize> {
    let all = u64::try_from(servers.len()).unwrap_or(u64::MAX);
    let count = unit.count.max(1);
    if all <= 1 || count.saturating_mul(all) > MOST_WORK {
        return best(servers, unit.run, unit.number, |_| true);
    }
    // A number beyond the count is treated as the last one.
    let number = unit.number.min(count - 1);
    let mut free = vec![count.div_ceil(all); servers.len()];
    for stream in 0..number {
        let chosen = best(servers, unit.run, stream, |i| free[i] > 0)?;
        free[chosen] -= 1;
    }
    best(servers, unit.run, number, |i| free[i] > 0)
}

/// Returns all servers in the order in which `unit` tries them: when a server fails, its streams
/// are assigned again among the rest.
pub(crate) fn order(servers: &[&str], unit: &Unit<'_>) -> Vec<usize> {
    let mut left: Vec<usize> = (0..servers.len()).collect();
    let mut order = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let names: Vec<&str> = left.iter().map(|&i| servers[i]).collect();
        let next = choose(&names, unit).unwrap_or(0);
        order.push(left.remove(next));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|i| format!("10.0.0.{i}:7070")).collect()
    }

    fn place(names: &[&str], count: u64) -> Vec<usize> {
        let unit = |number| Unit {
            run: "job/train/7",
            number,
            count,
        };
        (0..count)
            .map(|number| choose(names, &unit(number)).unwrap())
            .collect()
    }

    #[test]
    fn shares_are_even_and_independent_of_list_order() {
        for servers in [1, 2, 3, 7] {
            let names = names(servers);
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let mut turned = names.clone();
            turned.rotate_left(servers / 2);
            for count in [1, 2, 8, 64] {
                let placed = place(&names, count);
                for server in 0..servers {
                    let load = placed.iter().filter(|&&at| at == server).count() as u64;
                    assert!(load <= count.div_ceil(servers as u64), "{placed:?}");
                }
                let other = place(&turned, count);
                for (a, b) in placed.iter().zip(&other) {
                    assert_eq!(names[*a], turned[*b]);
                }
            }
        }
    }

    #[test]
    fn few_streams_move_when_a_server_goes() {
        let names = names(8);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let before = place(&names, 64);
        let mut moved = 0;
        for gone in 0..8 {
            let mut left = names.clone();
            left.remove(gone);
            let after = place(&left, 64);
            moved += before
                .iter()
                .zip(&after)
                .filter(|&(&a, &b)| a != gone && names[a] != left[b])
                .count();
        }
        // Eight changes, 56 streams that could stay each time; a plain modulo assignment would move
        // seven eighths.
        assert!(moved < 8 * 56 / 8, "{moved}");
    }

    /// Values computed independently in Python from the documented formula.
    #[test]
    fn the_hash_is_a_contract() {
        assert_eq!(score("10.0.0.1:7070", "job", 3), 7_842_847_743_631_891_409);
        assert_eq!(place(&["a:1", "b:1", "c:1"], 6), [1, 0, 1, 2, 0, 2]);
    }

    #[test]
    fn order_lists_every_server_once() {
        let unit = Unit {
            run: "x",
            number: 1,
            count: 4,
        };
        let names = ["a", "b", "c", "d"];
        let order = order(&names, &unit);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3]);
        assert_eq!(order[0], choose(&names, &unit).unwrap());
        assert_eq!(choose(&[], &unit), None);
        // Above the limit for bounded loads.
        let many = Unit {
            count: u64::MAX,
            number: u64::MAX,
            ..unit
        };
        assert!(choose(&names, &many).is_some());
    }
}
