//! What a rank notes of its calls for whoever looks from outside: an operator, the other ranks, the next morning.

use crate::call::OpKind;
use crate::dtype::{DataType, Reduction};
use crate::error::Error;

/// What a call does, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Summary(u64);

/// Bits of the number of bytes: more than the largest call has.
const BYTES_BITS: u32 = 40;
const BYTES_MASK: u64 = (1 << BYTES_BITS) - 1;

impl Summary {
    /// The meeting of a group's members at its first use, which is no call.
    pub const JOIN: Summary = Summary(0);

    /// A call of this kind with an output of so many bytes.
    #[must_use]
    pub fn new(kind: OpKind, dtype: DataType, reduction: Reduction, bytes: u64) -> Summary {
        let codes = [kind.code(), dtype.code(), reduction.code()].map(u64::from);
        let code = codes[0] << 16 | codes[1] << 8 | codes[2];
        Summary(code << BYTES_BITS | bytes.min(BYTES_MASK))
    }

    /// The word.
    #[must_use]
    #[inline]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// The summary that another rank wrote; `None` if the word is none.
    #[must_use]
    pub fn from_word(word: u64) -> Option<Summary> {
        let summary = Summary(word);
        let known = summary.kind().is_some() && summary.dtype().is_some() && summary.reduction().is_some();
        (known || summary == Summary::JOIN).then_some(summary)
    }

    fn code(self, at: u32) -> u8 {
        u8::try_from(self.0 >> (BYTES_BITS + at) & 0xff).unwrap_or_default()
    }

    /// The kind of the call; `None` for [`JOIN`](Self::JOIN).
    #[must_use]
    pub fn kind(self) -> Option<OpKind> {
        OpKind::from_code(self.code(16))
    }

    /// What it is called in messages.
    #[must_use]
    pub fn op(self) -> &'static str {
        self.kind().map_or("join", OpKind::name)
    }

    /// The type of its elements.
    #[must_use]
    pub fn dtype(self) -> Option<DataType> {
        DataType::from_code(self.code(8))
    }

    /// How they are combined; says nothing for kinds that combine none.
    #[must_use]
    pub fn reduction(self) -> Option<Reduction> {
        Reduction::from_code(self.code(0))
    }

    /// Bytes of its output.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0 & BYTES_MASK
    }
}

/// The kinds of errors with which a noted call can have failed, by their codes.
const FAILURES: [&str; 10] = [
    "failed",
    "InvalidArgument",
    "NotInGroup",
    "Mismatch",
    "RankDied",
    "Deadline",
    "GroupAborted",
    "ForkedProcess",
    "Closed",
    "Resource",
];

/// The code of this kind of error.
#[must_use]
pub const fn failure_code(error: &Error) -> u8 {
    match error {
        Error::InvalidArgument(_) => 1,
        Error::NotInGroup(_) => 2,
        Error::Mismatch(_) => 3,
        Error::RankDied(_) => 4,
        Error::Deadline(_) => 5,
        Error::GroupAborted(_) => 6,
        Error::ForkedProcess { .. } => 7,
        Error::Closed { .. } => 8,
        Error::Resource(_) => 9,
    }
}

/// The name of the kind of error with this [code](failure_code).
#[must_use]
pub fn failure_name(code: u8) -> &'static str {
    FAILURES.get(usize::from(code)).copied().unwrap_or(FAILURES[0])
}

/// The code of the kind of error with this name.
#[must_use]
pub fn failure_code_of(name: &str) -> u8 {
    let code = FAILURES.iter().position(|known| *known == name);
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or_default()
}

/// Stands for a call that was noted before it began: when it was submitted, or entered by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u32);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amount::MAX_INPUT;

    #[test]
    fn summaries_round_trip() {
        for kind in OpKind::ALL {
            for dtype in DataType::ALL {
                for reduction in Reduction::ALL {
                    let summary = Summary::new(kind, dtype, reduction, MAX_INPUT.0);
                    assert_eq!(Summary::from_word(summary.word()), Some(summary));
                    assert_eq!((summary.kind(), summary.dtype()), (Some(kind), Some(dtype)));
                    assert_eq!((summary.reduction(), summary.bytes()), (Some(reduction), MAX_INPUT.0));
                }
            }
        }
        assert_eq!(Summary::from_word(Summary::JOIN.word()), Some(Summary::JOIN));
        assert_eq!((Summary::JOIN.op(), Summary::JOIN.bytes()), ("join", 0));
    }

    #[test]
    fn failures_have_the_names_of_their_errors() {
        let error = Error::Closed { what: "g".into() };
        assert!(format!("{error:?}").starts_with(failure_name(failure_code(&error))));
        let error = Error::resource("a", "b", "c");
        assert!(format!("{error:?}").starts_with(failure_name(failure_code(&error))));
        assert_eq!(failure_name(200), "failed");
        assert!((0..10).all(|code| failure_code_of(failure_name(code)) == code));
        assert_eq!(failure_code_of("of another version"), 0);
    }

    #[test]
    fn nonsense_is_no_summary() {
        for word in [u64::MAX, 1, 7 << 60, 1 << 56, 0xff << 40] {
            assert_eq!(Summary::from_word(word), None, "{word:x}");
        }
    }
}
