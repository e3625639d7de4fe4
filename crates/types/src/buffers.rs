use core::ops::Range;

/// The user's buffers of one call. The input is never written unless input and output are the same buffer.
///
/// Input and output have the same length, except in an allgather: there the output holds every rank's contribution, and
/// if the two are one buffer, the own contribution stands at its place in it.
#[derive(Debug)]
pub enum Buffers<'a> {
    /// Input and output are different memory.
    Separate {
        /// This rank's contribution.
        input: &'a [u8],
        /// Where the result goes.
        output: &'a mut [u8],
    },
    /// The result replaces the contribution.
    InPlace(&'a mut [u8]),
}

impl<'a> Buffers<'a> {
    /// Length of the input, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.input().len()
    }

    /// Length of the output, in bytes.
    #[must_use]
    pub fn output_len(&self) -> usize {
        match self {
            Buffers::Separate { output, .. } => output.len(),
            Buffers::InPlace(both) => both.len(),
        }
    }

    /// Whether the input has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the result replaces the input.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        matches!(self, Buffers::InPlace(_))
    }

    /// The contribution of this rank.
    #[must_use]
    pub fn input(&self) -> &[u8] {
        match self {
            Buffers::Separate { input, .. } => input,
            Buffers::InPlace(both) => both,
        }
    }

    /// A part of the output.
    ///
    /// # Panics
    /// If the range is not inside the output.
    #[must_use]
    pub fn output(&mut self, range: Range<usize>) -> &mut [u8] {
        match self {
            Buffers::Separate { output, .. } => &mut output[range],
            Buffers::InPlace(both) => &mut both[range],
        }
    }

    /// The first `at` bytes of input and output, and the rest.
    ///
    /// # Panics
    /// If `at` is more than the length of either.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Buffers<'a>, Buffers<'a>) {
        self.split(at, at)
    }

    /// The first bytes of the input and of the output, so many of each, and the rest. If the two are one buffer, the output's
    /// number counts.
    ///
    /// # Panics
    /// If one is longer than what is to be split.
    #[must_use]
    pub fn split(self, input_at: usize, output_at: usize) -> (Buffers<'a>, Buffers<'a>) {
        match self {
            Buffers::Separate { input, output } => {
                let ((input, inputs), (output, outputs)) = (input.split_at(input_at), output.split_at_mut(output_at));
                (Buffers::Separate { input, output }, Buffers::Separate { input: inputs, output: outputs })
            }
            Buffers::InPlace(both) => {
                let (first, rest) = both.split_at_mut(output_at);
                (Buffers::InPlace(first), Buffers::InPlace(rest))
            }
        }
    }

    /// The same buffers for a shorter time.
    #[must_use]
    pub fn reborrow(&mut self) -> Buffers<'_> {
        match self {
            Buffers::Separate { input, output } => Buffers::Separate { input, output },
            Buffers::InPlace(both) => Buffers::InPlace(both),
        }
    }
}
