//! Assigns streams to servers: rendezvous hashing with bounded loads. No IO.
//!
//! Every process that knows the list of servers computes the same assignment without coordination.
//! Each stream ranks all servers by a hash of both names and takes the first that has capacity;
//! streams are placed rank by rank, and no server gets more than its even share. When a server
//! leaves or joins, few of the other streams move.

use forebay_batch::digest::value;

/// Limit of streams times servers for bounded loads, which require placing all preceding streams.
/// Above it, plain rendezvous hashing is nearly even.
const MOST_WORK: u64 = 1 << 20;

/// The stream to place, among all that share an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unit<'a> {
    /// Identifies the run whose streams are placed together.
    pub(crate) run: &'a str,
    pub(crate) number: u64,
    pub(crate) count: u64,
    /// Number of ranks. Streams whose numbers differ by a multiple of it are slices of the same
    /// batches and go to different servers if there are enough. Equal to `count` if batches are not
    /// sliced.
    pub(crate) ranks: u64,
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
    let ranks = unit.ranks.clamp(1, count);
    let parts = count.div_ceil(ranks);
    let mut room = Room::new(all, ranks, parts);
    for rank in 0..=number % ranks {
        room.next_rank();
        for stream in (0..parts).map(|part| rank + part * ranks) {
            let mut refused = vec![false; servers.len()];
            let chosen = loop {
                let i = best(servers, unit.run, stream, |i| !refused[i] && room.has(i))?;
                if room.suffices_without(i) {
                    break i;
                }
                refused[i] = true;
            };
            if stream == number {
                return Some(chosen);
            }
            room.take(chosen);
        }
    }
    None
}

/// Remaining capacity of each server while streams are placed rank by rank.
///
/// Two rules apply. A server takes at most its even share of all streams. Of the slices of one rank
/// it takes at most its even share of those, so that slices come from different servers if there
/// are enough. A choice is valid only if all later streams can still be placed under both rules.
/// This is a flow problem from ranks to servers. As the remaining ranks are all alike, a flow
/// exists if the remaining capacity suffices for the remaining ranks, for the unplaced slices of
/// the current rank, and for both together.
struct Room {
    /// Streams that each server can still take.
    free: Vec<u64>,
    /// Slices of the current rank on each server.
    taken: Vec<u64>,
    /// Limit of slices of one rank per server.
    most: u64,
    /// Slices per rank.
    parts: u64,
    /// Ranks after the current one.
    ranks: u64,
    /// Unplaced slices of the current rank.
    left: u64,
}

impl Room {
    fn new(servers: u64, ranks: u64, parts: u64) -> Self {
        Self {
            free: (0..servers)
                .map(|_| (ranks * parts).div_ceil(servers))
                .collect(),
            taken: (0..servers).map(|_| 0).collect(),
            most: parts.div_ceil(servers),
            parts,
            ranks,
            left: 0,
        }
    }

    fn next_rank(&mut self) {
        self.ranks -= 1;
        self.taken.fill(0);
        self.left = self.parts;
    }

    fn take(&mut self, server: usize) {
        self.free[server] -= 1;
        self.taken[server] += 1;
        self.left -= 1;
    }

    fn has(&self, server: usize) -> bool {
        self.free[server] > 0 && self.taken[server] < self.most
    }

    /// Returns whether all later streams can be placed if the next one goes to `server`, which has
    /// capacity for it.
    fn suffices_without(&self, server: usize) -> bool {
        let room = |ranks: u64, present: u64| -> u64 {
            let each = self.free.iter().zip(&self.taken).enumerate();
            each.map(|(i, (&free, &taken))| {
                let next = u64::from(i == server);
                let own = present * (self.most - taken - next);
                (free - next).min(ranks * self.most + own)
            })
            .sum()
        };
        let (present, later) = (self.left - 1, self.ranks * self.parts);
        room(0, 1) >= present
            && room(self.ranks, 0) >= later
            && room(self.ranks, 1) >= present + later
    }
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
            ranks: count,
        };
        (0..count)
            .map(|number| choose(names, &unit(number)).unwrap())
            .collect()
    }

    #[test]
    fn shares_are_even_and_all_agree_whatever_the_order_of_the_list() {
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

    #[test]
    fn parts_of_a_rank_come_from_different_servers() {
        for servers in 1..8 {
            let names = names(servers);
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            for parts in 1..8_u64 {
                for ranks in 1..10 {
                    let mut loads = vec![0; servers];
                    for rank in 0..ranks {
                        let mut own = vec![0; servers];
                        for part in 0..parts {
                            let unit = Unit {
                                run: "job/train/7",
                                number: rank + part * ranks,
                                count: ranks * parts,
                                ranks,
                            };
                            let at = choose(&names, &unit).unwrap();
                            own[at] += 1;
                            loads[at] += 1;
                        }
                        let most = parts.div_ceil(servers as u64);
                        assert!(own.iter().all(|&n| n <= most), "{ranks} {rank} {own:?}");
                    }
                    let share = (ranks * parts).div_ceil(servers as u64);
                    assert!(
                        loads.iter().all(|&n| n <= share),
                        "{ranks} {parts} {loads:?}"
                    );
                }
            }
        }
    }

    /// Values computed independently in Python from the documented formula.
    #[test]
    fn the_hash_is_a_contract() {
        assert_eq!(score("10.0.0.1:7070", "job", 3), 7_842_847_743_631_891_409);
        assert_eq!(place(&["a:1", "b:1", "c:1"], 6), [1, 0, 1, 2, 0, 2]);
    }

    #[test]
    fn the_next_ones_are_known() {
        let unit = Unit {
            run: "x",
            number: 1,
            count: 4,
            ranks: 4,
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
