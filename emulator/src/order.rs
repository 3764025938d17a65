//! The order in which the emulator runs threads, warps and blocks that a GPU runs concurrently: by
//! index, or drawn at random from a seed.
//!
//! A kernel's results must not depend on the order. With `FUSED_LOSS_EMULATOR_SEED` in the
//! environment, every launch draws its order from that number, and the same program draws the same
//! orders again.

use std::cell::Cell;
use std::env;
use std::sync::OnceLock;

/// The variable with the seed.
const SEED: &str = "FUSED_LOSS_EMULATOR_SEED";

/// Decides what runs next.
pub(crate) struct Order {
    /// The state of the random numbers (SplitMix64); `None` for the order of indices.
    state: Cell<Option<u64>>,
}

impl Order {
    pub(crate) fn by_index() -> Self {
        Order { state: Cell::new(None) }
    }

    pub(crate) fn drawn(seed: u64) -> Self {
        Order { state: Cell::new(Some(seed)) }
    }

    /// An order that depends only on the seed and `index`, not on what was drawn before.
    pub(crate) fn fork(&self, index: u64) -> Self {
        let seed = self.state.get();
        Order { state: Cell::new(seed.map(|seed| mix(seed ^ mix(index.wrapping_add(1))))) }
    }

    /// Which of `count` items is next; in the order of indices, the first.
    pub(crate) fn below(&self, count: usize) -> usize {
        self.draw().map_or(0, |bits| (bits % count as u64) as usize)
    }

    /// True in one of `times` draws, and never in the order of indices.
    pub(crate) fn happens(&self, times: u64) -> bool {
        self.draw().is_some_and(|bits| bits.is_multiple_of(times))
    }

    /// Shuffles the items, unless this is the order of indices.
    pub(crate) fn shuffle<T>(&self, items: &mut [T]) {
        if self.state.get().is_some() {
            for last in (1..items.len()).rev() {
                items.swap(last, self.below(last + 1));
            }
        }
    }

    fn draw(&self) -> Option<u64> {
        let next = self.state.get()?.wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.state.set(Some(next));
        Some(mix(next))
    }
}

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

/// The seed of this process, if it has one, or why the variable's value is not a seed.
pub(crate) fn seed() -> Result<Option<u64>, String> {
    static READ: OnceLock<Result<Option<u64>, String>> = OnceLock::new();
    READ.get_or_init(|| env::var_os(SEED).map(|text| parse(&text.to_string_lossy())).transpose())
        .clone()
}

fn parse(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{SEED}: expected a number from 0 to 2⁶⁴ − 1, got '{text}'"))
}

/// The order of the calling thread's next launch under `seed`. Each launch of a thread has another
/// order. A thread that makes the same launches again draws the same orders, whatever launches
/// other threads make in between.
pub(crate) fn of_next_launch(seed: u64) -> Order {
    thread_local! {
        static LAUNCHES: Cell<u64> = const { Cell::new(0) };
    }
    let launch = LAUNCHES.replace(LAUNCHES.get() + 1);
    if launch == 0 {
        // The test harness shows this with the test that fails, because each test runs on its own
        // thread.
        eprintln!("the emulator draws its order: {}", named(seed));
    }
    Order::drawn(mix(seed)).fork(launch)
}

/// How to repeat this order.
pub(crate) fn named(seed: u64) -> String {
    format!("{SEED}={seed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_indices_draws_nothing() {
        let order = Order::by_index();
        let mut items = [3, 1, 2];
        order.shuffle(&mut items);
        assert_eq!(items, [3, 1, 2]);
        assert_eq!((order.below(5), order.fork(7).below(5)), (0, 0));
        assert!(!order.happens(1));
    }

    #[test]
    fn a_seed_draws_the_same_again_and_another_seed_does_not() {
        let of = |order: Order| {
            let mut items: Vec<u32> = (0..100).collect();
            order.shuffle(&mut items);
            items
        };
        let first = of(Order::drawn(1));
        assert_eq!(first, of(Order::drawn(1)));
        assert_ne!(first, of(Order::drawn(2)));
        assert_ne!(first, of(Order::drawn(1).fork(0)));
        assert_ne!(of(Order::drawn(1).fork(0)), of(Order::drawn(1).fork(1)));
        let mut sorted = first;
        sorted.sort();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn every_place_is_drawn() {
        let order = Order::drawn(3);
        let mut seen = [0; 7];
        (0..700).for_each(|_| seen[order.below(7)] += 1);
        assert!(seen.iter().all(|&times| times > 50), "{seen:?}");
    }

    #[test]
    fn what_is_no_number_is_refused() {
        assert_eq!(parse("12"), Ok(12));
        let error = parse("twelve").unwrap_err();
        assert_eq!(
            error,
            "FUSED_LOSS_EMULATOR_SEED: expected a number from 0 to 2⁶⁴ − 1, got 'twelve'"
        );
        assert!(parse("-1").is_err());
    }
}
