//! Who calls, in which order: the same keys and the same sequences for every contender.

/// The calls as a service gets them: the subject of each is a string `user:00000000000` of its own, built before anything
/// is measured. They lie in order, so that reading the next one costs what it costs when a request has just brought it.
pub fn subjects(calls: &[u32]) -> Vec<String> {
    calls.iter().map(|call| format!("user:{call:011}")).collect()
}

/// Every call is about the same subject.
pub fn hot(calls: usize) -> Vec<u32> {
    vec![0; calls]
}

/// Every subject is as likely as any other.
pub fn uniform(count: usize, calls: usize, seed: u64) -> Vec<u32> {
    let mut random = Random(seed);
    (0..calls).map(|_| random.below(count as u64) as u32).collect()
}

/// The k-th most frequent subject calls 1/k as often as the first; the frequent ones are scattered over the subjects.
pub fn zipf(count: usize, calls: usize, seed: u64) -> Vec<u32> {
    let mut sum = 0.0;
    let cumulated: Vec<f64> = (1..=count)
        .map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        })
        .collect();
    let scattered = shuffled(count);
    let mut random = Random(seed);
    let mut draw = || {
        let at = random.fraction() * sum;
        scattered[cumulated.partition_point(|&up_to| up_to <= at).min(count - 1)]
    };
    (0..calls).map(|_| draw()).collect()
}

/// All of them once, in an order that is no order.
pub fn shuffled(count: usize) -> Vec<u32> {
    let mut random = Random(7);
    let mut all: Vec<u32> = (0..count as u32).collect();
    for index in (1..count).rev() {
        all.swap(index, random.below(index as u64 + 1) as usize);
    }
    all
}

/// SplitMix64: every run of the bench sees the same traffic.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
