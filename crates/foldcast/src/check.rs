//! What can be known to be wrong with a call before anything is done.

use engine::Work;
use types::error::{InvalidArgument, NotInGroup};
use types::{Buffers, Error, MAX_INPUT, OpKind, Result};

use crate::group::GroupShared;

/// The largest input, as a length in memory.
pub(crate) const MAX_BYTES: usize = 8 << 30;

impl GroupShared {
    /// What can be known to be wrong before anything is done. `work` is what the arguments say.
    #[inline]
    pub(crate) fn check(&self, work: &Work, buffers: &Buffers<'_>) -> Result<()> {
        self.world.check_process()?;
        let (bytes, element) = (work.bytes(), work.dtype().size());
        let input = work.input_bytes(self.index.unwrap_or_default());
        let fits = match buffers {
            Buffers::Separate { input: given, output } => given.len() == input && output.len() == bytes,
            Buffers::InPlace(both) => both.len() == bytes,
        };
        if self.index.is_none() || !bytes.is_multiple_of(element) || !fits || bytes > MAX_BYTES {
            return Err(self.refusal(work, input, buffers));
        }
        match work.kind() {
            OpKind::AllReduce => self.check_product(work.dtype(), work.reduction()),
            _ => Ok(()),
        }
    }

    /// An argument of a call of this kind is wrong.
    pub(crate) fn invalid(&self, kind: OpKind, field: &str, expected: String, got: String) -> Error {
        let site = Some(self.view.site(kind.name(), None));
        Error::InvalidArgument(Box::new(InvalidArgument { site, field: field.into(), expected, got }))
    }

    #[cold]
    fn refusal(&self, work: &Work, input: usize, buffers: &Buffers<'_>) -> Error {
        let (kind, bytes, dtype) = (work.kind(), work.bytes(), work.dtype());
        if self.index.is_none() {
            return self.not_a_member(kind);
        }
        if bytes > MAX_BYTES {
            let field = if kind == OpKind::AllGather { "output" } else { "input" };
            let expected = format!("at most {MAX_INPUT} ({MAX_BYTES} bytes)");
            return self.invalid(kind, field, expected, format!("{bytes} bytes"));
        }
        if buffers.len() != input && !buffers.is_in_place() {
            let expected = format!("{} elements of {dtype} ({input} bytes)", input / dtype.size());
            return self.invalid(kind, "input", expected, format!("{} bytes", buffers.len()));
        }
        let output = buffers.output_len();
        if output != bytes {
            let expected = match kind {
                OpKind::AllGather => format!("{bytes} bytes, the contributions of all {} ranks", self.view.ranks.len()),
                _ => format!("{bytes} bytes as the input"),
            };
            return self.invalid(kind, "output", expected, format!("{output} bytes"));
        }
        let expected = format!("a multiple of {} bytes, the size of {dtype}", dtype.size());
        self.invalid(kind, "input", expected, format!("{bytes} bytes"))
    }

    #[cold]
    pub(crate) fn not_a_member(&self, kind: OpKind) -> Error {
        self.stranger(kind.name())
    }

    /// This process is no member, and called `op`.
    #[cold]
    pub(crate) fn stranger(&self, op: &'static str) -> Error {
        Error::NotInGroup(Box::new(NotInGroup {
            rank: self.view.rank,
            op,
            group: self.view.group.clone(),
            members: Some(self.view.ranks.clone()),
            known: self.world.group_names(),
        }))
    }
}
