//! Start-time fair queueing over a tree of shares (Goyal, Vin, Cheng, 1996).
//!
//! Each [`FairShare`] competes with its siblings: dataset names with each other, the clients of a name,
//! and the streams of a client. So a client that opens many streams divides its own share and takes
//! nothing from other clients.
//!
//! The queue selects the next item from the root down: at each level the share with the lowest
//! usage relative to its weight is next, and the cost of the item is added to every share on the
//! path. A share that was idle starts at the current usage of its siblings, so idle time is not
//! saved up.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// The largest weight; the smallest one is its reciprocal.
const MOST_WEIGHT: f64 = 1e4;

/// A share of the cores, or of a network, relative to other shares.
///
/// A clone is the same share. A [part](FairShare::part) of a share competes with the other parts of
/// that share only.
///
/// ```
/// use forebay_loader::FairShare;
///
/// let (production, trial) = (FairShare::new(4.0), FairShare::new(1.0));
/// assert_eq!((production.weight(), trial.weight()), (4.0, 1.0));
/// assert_ne!(production, FairShare::new(4.0), "loaders share a share, not a number");
/// assert_eq!(production.part_of("10.0.0.1"), production.part_of("10.0.0.1"));
/// assert_ne!(production.part(), production.part());
/// ```
#[derive(Clone)]
pub struct FairShare(Arc<Part>);

struct Part {
    weight: f64,
    parent: Option<FairShare>,
    /// Parts of the same share with equal keys are equal.
    key: Option<Box<str>>,
}

impl FairShare {
    /// Creates a share with a weight relative to others: under contention, twice the weight means
    /// twice the CPU time. Weights are clamped to the range 0.0001 to 10,000; NaN counts as 1.
    #[must_use]
    pub fn new(weight: f64) -> Self {
        let weight = if weight.is_nan() { 1.0 } else { weight };
        let weight = weight.clamp(1.0 / MOST_WEIGHT, MOST_WEIGHT);
        FairShare(Arc::new(Part {
            weight,
            parent: None,
            key: None,
        }))
    }

    /// Creates a new part of this share.
    #[must_use]
    pub fn part(&self) -> FairShare {
        self.divided(None)
    }

    /// Returns the part of this share that belongs to `key`, such as the address of a client.
    #[must_use]
    pub fn part_of(&self, key: &str) -> FairShare {
        self.divided(Some(key.into()))
    }

    fn divided(&self, key: Option<Box<str>>) -> FairShare {
        FairShare(Arc::new(Part {
            weight: 1.0,
            parent: Some(self.clone()),
            key,
        }))
    }

    /// Returns the weight.
    #[must_use]
    pub fn weight(&self) -> f64 {
        self.0.weight
    }

    /// Returns whether a caller can still use this share: it has a key, or a clone exists outside the queue.
    fn may_return(&self) -> bool {
        self.0.key.is_some() || Arc::strong_count(&self.0) > 1
    }

    /// Returns the path from the outermost share to this one.
    fn path(&self) -> Vec<&FairShare> {
        let mut path: Vec<&FairShare> =
            std::iter::successors(Some(self), |share| share.0.parent.as_ref()).collect();
        path.reverse();
        path
    }
}

impl Default for FairShare {
    /// Weight 1.
    fn default() -> Self {
        FairShare::new(1.0)
    }
}

impl PartialEq for FairShare {
    /// Returns whether both are the same share.
    fn eq(&self, other: &Self) -> bool {
        let same_part = || self.0.key.is_some() && self.0.key == other.0.key;
        Arc::ptr_eq(&self.0, &other.0) || (same_part() && self.0.parent == other.0.parent)
    }
}

impl fmt::Debug for FairShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FairShare").field(&self.0.weight).finish()
    }
}

/// A fair queue of waiting items. It uses neither threads nor clocks.
#[derive(Debug)]
pub struct FairQueue<T> {
    root: Node<T>,
}

#[derive(Debug)]
struct Node<T> {
    /// `None` for the root.
    share: Option<FairShare>,
    /// Cost of its items so far, divided by its weight.
    used: f64,
    /// `used` of the child that was served last; idle children start from there.
    now: f64,
    /// Number of items here and below.
    len: usize,
    /// Number of users here and below, which keep it even if nothing waits.
    members: usize,
    items: VecDeque<T>,
    children: Vec<Node<T>>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        FairQueue {
            root: Node::new(None, 0.0),
        }
    }
}

impl<T> FairQueue<T> {
    /// Returns the number of waiting items.
    #[must_use]
    pub fn len(&self) -> usize {
        self.root.len
    }

    /// Returns whether no item waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.root.len == 0
    }

    /// Returns whether the usage of no share is remembered.
    #[must_use]
    pub fn is_forgotten(&self) -> bool {
        self.root.children.is_empty()
    }

    /// Remembers the usage of `share` until [`leave`](FairQueue::leave) was called as often as
    /// `join`.
    pub fn join(&mut self, share: &FairShare) {
        self.root.members += 1;
        self.root.walk(&share.path(), &mut |node| node.members += 1);
    }

    /// Reverses a call of [`FairQueue::join`].
    pub fn leave(&mut self, share: &FairShare) {
        let leave = &mut |node: &mut Node<T>| node.members = node.members.saturating_sub(1);
        leave(&mut self.root);
        self.root.walk(&share.path(), leave);
        self.root.forget();
    }

    /// Adds an item after the others of its share.
    pub fn push(&mut self, share: &FairShare, item: T) {
        self.root.push(&share.path(), item);
    }

    /// Returns the next item.
    #[must_use]
    pub fn peek(&self) -> Option<&T> {
        self.root.peek()
    }

    /// Removes the next item, and charges its cost to its shares.
    pub fn pop(&mut self, cost: impl FnOnce(&T) -> f64) -> Option<T> {
        self.root.pop(cost).map(|(item, _)| item)
    }

    /// Corrects the cost of an item by `cost`.
    pub fn adjust(&mut self, share: &FairShare, cost: f64) {
        let adjust = &mut |node: &mut Node<T>| node.used += cost / node.weight();
        self.root.walk(&share.path(), adjust);
    }

    /// Removes the items of `share` for which `is_given_up` returns true.
    pub fn remove(&mut self, share: &FairShare, is_given_up: impl Fn(&T) -> bool) {
        self.root.remove(&share.path(), &is_given_up);
        self.root.forget();
    }
}

impl<T> Node<T> {
    fn new(share: Option<FairShare>, used: f64) -> Self {
        Node {
            share,
            used,
            now: 0.0,
            len: 0,
            members: 0,
            items: VecDeque::new(),
            children: Vec::new(),
        }
    }

    fn weight(&self) -> f64 {
        self.share.as_ref().map_or(1.0, FairShare::weight)
    }

    /// Returns the child for this share, creating it if necessary.
    fn child(&mut self, share: &FairShare) -> &mut Node<T> {
        let is_it = |node: &Node<T>| node.share.as_ref() == Some(share);
        let at = self.children.iter().position(is_it).unwrap_or_else(|| {
            self.children.push(Node::new(Some(share.clone()), self.now));
            self.children.len() - 1
        });
        &mut self.children[at]
    }

    fn walk(&mut self, path: &[&FairShare], change: &mut dyn FnMut(&mut Node<T>)) {
        if let Some((first, rest)) = path.split_first() {
            let child = self.child(first);
            change(child);
            child.walk(rest, change);
        }
    }

    fn push(&mut self, path: &[&FairShare], item: T) {
        self.len += 1;
        let Some((first, rest)) = path.split_first() else {
            self.items.push_back(item);
            return;
        };
        let now = self.now;
        let child = self.child(first);
        if child.len == 0 {
            // Idle time is not saved up.
            child.used = child.used.max(now);
        }
        child.push(rest, item);
    }

    /// Returns the next child; `None` if items of this share itself wait, which precede those of
    /// its parts.
    fn turn(&self) -> Option<usize> {
        if !self.items.is_empty() {
            return None;
        }
        let waiting = self.children.iter().enumerate();
        let waiting = waiting.filter(|(_, child)| child.len > 0);
        // Ties go to the first child, in order of creation.
        waiting
            .reduce(|a, b| if b.1.used < a.1.used { b } else { a })
            .map(|(at, _)| at)
    }

    fn peek(&self) -> Option<&T> {
        match self.turn() {
            Some(child) => self.children[child].peek(),
            None => self.items.front(),
        }
    }

    fn pop(&mut self, cost: impl FnOnce(&T) -> f64) -> Option<(T, f64)> {
        let turn = self.turn();
        let (item, cost) = match turn {
            Some(child) => {
                let began = self.children[child].used;
                self.now = self.now.max(began);
                self.children[child].pop(cost)?
            }
            None => {
                let item = self.items.pop_front()?;
                let cost = cost(&item);
                (item, cost)
            }
        };
        self.len -= 1;
        self.used += cost / self.weight();
        Some((item, cost))
    }

    /// Returns the number of removed items.
    fn remove(&mut self, path: &[&FairShare], is_given_up: &dyn Fn(&T) -> bool) -> usize {
        let removed = match path.split_first() {
            Some((first, rest)) => self.child(first).remove(rest, is_given_up),
            None => {
                let before = self.items.len();
                self.items.retain(|item| !is_given_up(item));
                before - self.items.len()
            }
        };
        self.len -= removed;
        removed
    }

    /// Forgets unused shares, except those that may return with a debt while siblings are in use.
    fn forget(&mut self) {
        let (now, has_users) = (self.now, self.members > 0 || self.len > 0);
        self.children.retain_mut(|child| {
            child.forget();
            let is_used = child.len > 0 || child.members > 0 || !child.children.is_empty();
            let may_return = child.share.as_ref().is_some_and(FairShare::may_return);
            is_used || (has_users && may_return && child.used > now)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how often each share is served in `rounds` rounds, if all shares always wait and the items
    /// of each share have the given cost.
    fn served(shares: &[(&FairShare, f64)], rounds: usize) -> Vec<usize> {
        let mut queue = FairQueue::default();
        for (who, (share, _)) in shares.iter().enumerate() {
            queue.join(share);
            queue.push(share, who);
        }
        let mut counts = vec![0; shares.len()];
        for _ in 0..rounds {
            assert_eq!(queue.len(), shares.len());
            let next = queue.peek().copied();
            let who = queue.pop(|who| shares[*who].1).unwrap();
            assert_eq!(next, Some(who));
            counts[who] += 1;
            queue.push(shares[who].0, who);
        }
        for (share, _) in shares {
            queue.remove(share, |_| true);
            queue.leave(share);
        }
        counts
    }

    #[test]
    fn streams_of_one_client_divide_the_share_of_the_client() {
        let name = FairShare::default();
        let (greedy, good) = (name.part_of("10.0.0.1"), name.part_of("10.0.0.2"));
        let streams: Vec<FairShare> = (0..60).map(|_| greedy.part()).collect();
        let only = good.part();
        let mut shares: Vec<(&FairShare, f64)> = streams.iter().map(|share| (share, 1.0)).collect();
        shares.push((&only, 1.0));
        let counts = served(&shares, 6000);
        assert_eq!(counts[60], 3000, "a half for each client");
        assert!(counts[..60].iter().all(|&count| count == 50), "{counts:?}");
        // Items that cost ten times as much are served a tenth as often.
        for share in &mut shares[..60] {
            share.1 = 10.0;
        }
        let counts = served(&shares, 6600);
        assert!((5990..=6010).contains(&counts[60]), "{counts:?}");
        // Streams of one address share it evenly, by cost.
        let counts = served(&[(&streams[0], 9.0), (&streams[1], 1.0)], 1000);
        assert!((895..=905).contains(&counts[1]), "{counts:?}");
    }

    #[test]
    fn clients_of_a_name_take_nothing_from_other_names() {
        let (heavy, light) = (FairShare::new(3.0), FairShare::new(1.0));
        let clients: Vec<FairShare> = (0..10)
            .map(|i| light.part_of(&i.to_string()).part())
            .collect();
        let only = heavy.part_of("0").part();
        let mut shares: Vec<(&FairShare, f64)> = clients.iter().map(|share| (share, 1.0)).collect();
        shares.push((&only, 1.0));
        let counts = served(&shares, 4000);
        assert_eq!(counts[10], 3000, "{counts:?}");
        assert!(counts[..10].iter().all(|&count| count == 100), "{counts:?}");
    }

    #[test]
    fn debts_are_remembered_and_idle_shares_forgotten() {
        let mut queue = FairQueue::default();
        let name = FairShare::default();
        let (one, two) = (name.part_of("1"), name.part_of("2"));
        queue.join(&two);
        queue.push(&one, 1);
        assert_eq!(queue.pop(|_| 100.0), Some(1));
        // The client with the key 1 returns at once.
        queue.push(&name.part_of("1"), 1);
        for _ in 0..50 {
            queue.push(&two, 2);
            assert_eq!(queue.pop(|_| 1.0), Some(2));
        }
        queue.remove(&one, |_| true);
        assert!(queue.is_empty());
        let clients = |queue: &FairQueue<i32>| queue.root.children[0].children.len();
        assert_eq!(clients(&queue), 2, "it had a hundred of fifty");
        for _ in 0..200 {
            queue.push(&two, 2);
            queue.pop(|_| 1.0);
        }
        queue.remove(&two, |_| true);
        assert_eq!(clients(&queue), 1);
        queue.leave(&two);
        assert!(queue.is_forgotten());
    }

    #[test]
    fn idle_shares_save_nothing_up() {
        let mut queue = FairQueue::default();
        let (early, late) = (FairShare::default(), FairShare::default());
        queue.join(&early);
        queue.join(&late);
        for _ in 0..100 {
            queue.push(&early, 0);
            queue.pop(|_| 1.0);
        }
        let mut counts = [0, 0];
        queue.push(&early, 0);
        queue.push(&late, 1);
        for _ in 0..10 {
            let who: usize = queue.pop(|_| 1.0).unwrap();
            counts[who] += 1;
            queue.push([&early, &late][who], who);
        }
        assert!(counts[1] <= 6, "{counts:?}");
    }

    #[test]
    fn weights_are_clamped() {
        assert_eq!(FairShare::new(f64::NAN).weight(), 1.0);
        assert_eq!(FairShare::new(-3.0).weight(), 1e-4);
        assert_eq!(FairShare::new(f64::INFINITY).weight(), 1e4);
    }
}
