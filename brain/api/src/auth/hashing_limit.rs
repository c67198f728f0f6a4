//! Turns for the hashing of passwords. Hashing occupies a processor for long, so few clients do it at once, and the others wait.
//!
//! Turns rotate between the addresses of the waiting clients, and within an address between users: many wrong logins delay a correct one by
//! one turn, unless they come from the same address and name the same user.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use etcd_types::errors::Error;

/// Most that wait for a turn, of one address and of all.
const MAX_WAITING_PER_ADDRESS: usize = 1_000;
const MAX_WAITING: usize = 10_000;

/// Where a password comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PasswordOrigin {
    /// The client's address; of IPv6 the network. `None` for Unix sockets.
    pub(super) address: Option<IpAddr>,
    /// The user that the client names.
    pub(super) user: String,
}

impl PasswordOrigin {
    /// Creates the origin of a client's request.
    pub(super) fn new(address: Option<IpAddr>, user: impl Into<String>) -> Self {
        let address = address.map(|address| match address.to_canonical() {
            // One host may have all addresses of its network.
            IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() & (u128::MAX << 64)).into()),
            ip @ IpAddr::V4(_) => ip,
        });
        let user = user.into();
        Self { address, user }
    }
}

/// Those who wait, in the order of their turns.
#[derive(Debug)]
struct FairQueue<T> {
    /// Addresses that have any, in order.
    order: VecDeque<Option<IpAddr>>,
    waiting: HashMap<Option<IpAddr>, AddressQueue<T>>,
    len: usize,
}

/// Those of one address.
#[derive(Debug)]
struct AddressQueue<T> {
    /// Users that have any, in order.
    users: VecDeque<(String, VecDeque<T>)>,
    len: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            order: VecDeque::new(),
            waiting: HashMap::new(),
            len: 0,
        }
    }
}

impl<T> FairQueue<T> {
    /// Queues one. Gives it back where too many wait.
    fn push(&mut self, origin: PasswordOrigin, item: T) -> Result<(), T> {
        let len = self.waiting.get(&origin.address).map_or(0, |address| address.len);
        if len >= MAX_WAITING_PER_ADDRESS || self.len >= MAX_WAITING {
            return Err(item);
        }
        if len == 0 {
            self.order.push_back(origin.address);
        }
        let address = self.waiting.entry(origin.address).or_insert_with(|| AddressQueue {
            users: VecDeque::new(),
            len: 0,
        });
        match address.users.iter_mut().find(|(user, _)| *user == origin.user) {
            Some((_, items)) => items.push_back(item),
            None => address.users.push_back((origin.user, VecDeque::from([item]))),
        }
        address.len += 1;
        self.len += 1;
        Ok(())
    }

    /// Takes the next one.
    fn pop(&mut self) -> Option<T> {
        let of = self.order.pop_front()?;
        let address = self.waiting.get_mut(&of)?;
        let (user, mut items) = address.users.pop_front()?;
        let item = items.pop_front();
        if !items.is_empty() {
            address.users.push_back((user, items));
        }
        address.len -= 1;
        self.len -= 1;
        if address.len == 0 {
            self.waiting.remove(&of);
        } else {
            self.order.push_back(of);
        }
        item
    }

    /// Drops those that are not wanted any more.
    fn retain(&mut self, mut is_wanted: impl FnMut(&T) -> bool) {
        for address in self.waiting.values_mut() {
            for (_, items) in &mut address.users {
                items.retain(&mut is_wanted);
            }
            address.users.retain(|(_, items)| !items.is_empty());
            address.len = address.users.iter().map(|(_, items)| items.len()).sum();
        }
        self.waiting.retain(|_, address| address.len > 0);
        self.order.retain(|address| self.waiting.contains_key(address));
        self.len = self.waiting.values().map(|address| address.len).sum();
    }
}

/// Limits how many turns are in use at once.
#[derive(Debug, Clone)]
pub(super) struct HashingLimit(Arc<Mutex<HashingState>>);

#[derive(Debug)]
struct HashingState {
    /// Turns that are not in use.
    free: usize,
    queue: FairQueue<oneshot::Sender<HashingPermit>>,
}

/// A turn. The next one begins when it is dropped, unless it was taken out of it.
#[derive(Debug)]
pub(super) struct HashingPermit(Option<HashingLimit>);

impl HashingLimit {
    /// Gives turns to `at_once`.
    pub(super) fn new(at_once: usize) -> Self {
        Self(Arc::new(Mutex::new(HashingState {
            free: at_once,
            queue: FairQueue::default(),
        })))
    }

    /// Waits for a turn.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] where too many wait.
    pub(super) async fn take(&self, origin: PasswordOrigin) -> Result<HashingPermit, Error> {
        let waits = {
            let mut state = self.state();
            if state.free > 0 {
                state.free -= 1;
                return Ok(HashingPermit(Some(self.clone())));
            }
            let (turn, waits) = oneshot::channel();
            if let Err(turn) = state.queue.push(origin.clone(), turn) {
                // Clients that have left need no turn.
                state.queue.retain(|turn| !turn.is_closed());
                state.queue.push(origin, turn).map_err(|_| Error::TooManyRequests)?;
            }
            waits
        };
        waits.await.map_err(|_| Error::Stopped)
    }

    fn state(&self) -> MutexGuard<'_, HashingState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HashingPermit {
    fn drop(&mut self) {
        let Some(turns) = self.0.take() else { return };
        loop {
            let next = {
                let mut state = turns.state();
                let next = state.queue.pop();
                if next.is_none() {
                    state.free += 1;
                }
                next
            };
            let Some(next) = next else { return };
            match next.send(HashingPermit(Some(turns.clone()))) {
                Ok(()) => return,
                // The client has left, and the turn is the next one's.
                Err(mut unused) => unused.0 = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn origin(address: &str, user: &str) -> PasswordOrigin {
        PasswordOrigin::new(Some(address.parse().unwrap()), user)
    }

    #[test]
    fn addresses_and_their_users_take_turns() {
        let mut queue = FairQueue::default();
        for n in 0..200 {
            queue.push(origin("10.0.0.1", "u"), format!("wrong {n}")).unwrap();
        }
        queue.push(origin("10.0.0.1", "v"), "same address".to_owned()).unwrap();
        queue.push(origin("10.0.0.2", "u"), "same user".to_owned()).unwrap();
        queue.push(origin("10.0.0.2", "u"), "again".to_owned()).unwrap();
        let order: Vec<String> = std::iter::from_fn(|| queue.pop()).collect();
        let expected = ["wrong 0", "same user", "same address", "again", "wrong 1", "wrong 2"];
        assert_eq!(order[..6], expected);
        assert_eq!(order.len(), 203);
        assert_eq!((queue.len, queue.order.len(), queue.waiting.len()), (0, 0, 0));
    }

    #[test]
    fn network_of_ipv6_is_one_address() {
        assert_eq!(origin("2001:db8::1", "u"), origin("2001:db8::2", "u"));
        assert_ne!(origin("2001:db8:0:1::1", "u"), origin("2001:db8::1", "u"));
        assert_eq!(origin("::ffff:10.0.0.1", "u"), origin("10.0.0.1", "u"));
    }

    #[test]
    fn queue_of_an_address_is_bounded() {
        let mut queue = FairQueue::default();
        for _ in 0..MAX_WAITING_PER_ADDRESS {
            queue.push(origin("10.0.0.1", "u"), true).unwrap();
        }
        assert!(queue.push(origin("10.0.0.1", "v"), true).is_err());
        queue.push(origin("10.0.0.2", "v"), false).unwrap();
        queue.retain(|is_wanted| !is_wanted);
        queue.push(origin("10.0.0.1", "v"), true).unwrap();
        assert_eq!((queue.len, queue.order.len()), (2, 2));
    }

    #[test]
    fn turn_goes_to_the_next_that_still_waits() {
        let turns = HashingLimit::new(1);
        let first = turns.take(origin("10.0.0.1", "u")).now_or_never().unwrap().unwrap();
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(turns.take(origin("10.0.0.1", "u")))).collect();
        assert!(waiting.iter_mut().all(|waits| waits.now_or_never().is_none()));
        let mut other = Box::pin(turns.take(origin("10.0.0.2", "u")));
        assert!((&mut other).now_or_never().is_none());
        drop(waiting.remove(0));
        drop(first);
        // The first that waited has left: its address has had its turn.
        let second = (&mut other).now_or_never().unwrap().unwrap();
        assert!(waiting.iter_mut().all(|waits| waits.now_or_never().is_none()));
        drop(second);
        drop(waiting);
        // No client waits any more, although turns were given to clients that had left.
        assert!(turns.take(PasswordOrigin::default()).now_or_never().unwrap().is_ok());
    }
}
