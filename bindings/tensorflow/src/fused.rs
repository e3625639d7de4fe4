//! The op `HcomAllReduceFused`: many tensors in, as many out, one call. Nothing is copied here: the engine gets the tensors
//! where they are. It folds each element by the same tree wherever it lies, so the bits are those of single calls.

use table::{ListCall, Member};

use crate::attributes::{Attributes, Kind};
use crate::call::{Operation, Pair, Submission};
use crate::context::Context;
use crate::status::{Failure, Status, StatusCode};

pub(crate) struct List(Vec<Pair>);

impl Operation for List {
    const KIND: Kind = Kind::Fused;

    fn prepare(context: &Context, attributes: &Attributes) -> Result<List, Failure> {
        let status = Status::new();
        let pair = |index| Pair::new(context, attributes, index, &status);
        (0..context.inputs()).map(pair).collect::<Result<_, _>>().map(List)
    }

    type Memory = Vec<Member>;

    fn memory(&self) -> Vec<Member> {
        let member = |pair: &Pair| {
            let (input, output, bytes) = pair.memory();
            Member { input, output, bytes }
        };
        self.0.iter().map(member).collect()
    }

    unsafe fn submit(members: Vec<Member>, to: &Submission<'_>) {
        let suffix = to.attributes.tag.suffix_of(to.tag);
        let call = ListCall {
            common: to.common(),
            dtype: to.attributes.dtype,
            reduction: to.attributes.reduction,
            names: to.attributes.members.as_ptr(),
            names_len: to.attributes.members.len(),
            alone: to.attributes.alone.as_ptr(),
            alone_len: to.attributes.alone.len(),
            suffix: suffix.as_ptr(),
            suffix_len: suffix.len(),
            members: members.as_ptr(),
            count: members.len(),
        };
        // SAFETY: the texts and the members live until the engine has read them; the tensors, as the caller promises, until
        // the call has ended. Their memory is as `Member` asks: each output is a tensor of its own.
        unsafe { (to.table.submit_list)(&call) };
    }

    fn advice(code: StatusCode) -> &'static str {
        if code == StatusCode::InvalidArgument {
            "; all ranks must run the same allreduces of a group in one step; if threads of a rank run different parts of \
             one graph at once, their fused calls can meet: give those ops different fusion_id with fusion=2, or fusion=0, \
             or set FOLDCAST_TENSORFLOW_FUSION=0 on all ranks"
        } else {
            ""
        }
    }
}
