//! Requests that wait, in the order in which they begin.

use std::collections::BTreeMap;
use std::time::Duration;

use super::RequestId;

/// How soon a request begins where not all can.
///
/// A class is a head start: each begins as if it had been submitted so much later than one of the highest class. So a request is
/// passed by those of a higher class only for that long, and none waits for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Before all others.
    High,
    /// 2 seconds later.
    #[default]
    Normal,
    /// 10 seconds later.
    Low,
    /// An hour later. While nothing else runs, steps are short and one at a time, so that a user interface on the same device
    /// goes on; and those that run give their slots and blocks to requests of higher classes that come within that hour.
    Background,
}

impl Priority {
    /// What it adds to the time of submission.
    pub(crate) fn delay(self) -> Duration {
        Duration::from_secs(match self {
            Self::High => 0,
            Self::Normal => 2,
            Self::Low => 10,
            Self::Background => 3600,
        })
    }
}

/// A request's place among all: it never changes, so that all that come later come after it at some point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank(Duration, RequestId);

impl Rank {
    pub(super) fn new(submitted: Duration, priority: Priority, request: RequestId) -> Self {
        Self(submitted + priority.delay(), request)
    }

    /// When it comes before all that are submitted from then on.
    pub(super) fn due(&self) -> Duration {
        self.0
    }
}

/// The requests that wait.
#[derive(Debug, Default)]
pub(super) struct Queue {
    requests: BTreeMap<Rank, u32>,
    tokens: u64,
}

impl Queue {
    /// Adds one with so many tokens to compute.
    pub(super) fn insert(&mut self, rank: Rank, tokens: u32) {
        self.tokens += u64::from(tokens);
        self.requests.insert(rank, tokens);
    }

    /// Takes one out, if it waits.
    pub(super) fn remove(&mut self, rank: Rank) {
        self.tokens -= u64::from(self.requests.remove(&rank).unwrap_or(0));
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Tokens of all that wait.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The first ones.
    pub(super) fn first(&self, count: usize) -> Vec<RequestId> {
        self.requests.keys().take(count).map(|Rank(_, request)| *request).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_head_starts() {
        let rank = |seconds, priority, id| Rank::new(Duration::from_secs(seconds), priority, RequestId(id));
        let mut queue = Queue::default();
        let ranks = [
            rank(0, Priority::Background, 1),
            rank(0, Priority::Low, 2),
            rank(7, Priority::Normal, 3),
            rank(8, Priority::Normal, 4),
            rank(11, Priority::High, 5),
            rank(3598, Priority::Normal, 6),
            rank(3600, Priority::High, 7),
        ];
        ranks.iter().for_each(|rank| queue.insert(*rank, 10));
        assert_eq!(queue.first(9).map_ids(), [3, 2, 4, 5, 1, 6, 7]);
        queue.remove(ranks[1]);
        queue.remove(ranks[1]);
        assert_eq!((queue.len(), queue.tokens(), queue.is_empty()), (6, 60, false));
    }

    trait Ids {
        fn map_ids(self) -> Vec<u64>;
    }

    impl Ids for Vec<RequestId> {
        fn map_ids(self) -> Vec<u64> {
            self.into_iter().map(|RequestId(id)| id).collect()
        }
    }
}
