//! Numbers and texts that look random and are the same in every run.

const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
/// Characters of the random ends of names, as Kubernetes makes them.
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The generator of that name.
pub(super) struct SplitMix(u64);

impl SplitMix {
    /// Different numbers give different texts.
    pub(super) fn of(numbers: &[u64]) -> Self {
        let mut state = Self(0);
        for number in numbers {
            state.0 ^= *number;
            state.0 = state.next();
        }
        state
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_GAMMA);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(super) fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len() as u64) as usize]
    }

    /// That many digits.
    pub(super) fn hex(&mut self, digits: usize) -> String {
        let mut text = String::with_capacity(digits + 16);
        while text.len() < digits {
            text += &format!("{:016x}", self.next());
        }
        text.truncate(digits);
        text
    }

    /// The random end of a name.
    pub(super) fn suffix(&mut self, length: usize) -> String {
        let letter = |_| char::from(SUFFIX_ALPHABET[self.below(SUFFIX_ALPHABET.len() as u64) as usize]);
        (0..length).map(letter).collect()
    }

    /// A UUID.
    pub(super) fn uid(&mut self) -> String {
        let hex = self.hex(30);
        format!(
            "{}-{}-4{}-a{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[12..15],
            &hex[15..18],
            &hex[18..]
        )
    }
}
