/// A small pseudo-random generator (splitmix64, after Steele, Lea and Flood, 2014): equal seeds give equal numbers on
/// every machine and in every version.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// A number of 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A generator of its own, so that what one part of a world draws changes nothing for the others.
    pub fn fork(&mut self) -> Random {
        Random(self.draw())
    }

    /// A number below `end`.
    ///
    /// # Panics
    /// If `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).expect("usize is at most 64 bits wide");
        usize::try_from((self.draw() >> 16) % end).expect("below a usize")
    }

    /// Whether something happens that happens in `part` of `of` cases.
    pub fn chance(&mut self, part: usize, of: usize) -> bool {
        self.below(of) < part
    }

    /// One of these.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}
