//! What a call is asked to do, as the world sees it: apart from the engine's own words, so that it can be judged by them.

use std::fmt;

use engine::Work;
use types::{DataType, OpKind, Parts, Product, Rank, Reduction};

/// A call as one rank makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The kind of the collective.
    pub kind: OpKind,
    /// The type of the elements.
    pub dtype: DataType,
    /// How they are combined; `Sum` where they are not.
    pub reduction: Reduction,
    /// Elements of the output of each launch: of one, or of a list of several.
    pub launches: Vec<usize>,
    /// The lengths of the buffers of a list, and a digest of what else belongs to them.
    pub list: Option<(Vec<usize>, u64)>,
    /// Elements of each member, in an allgather.
    pub pieces: Vec<usize>,
    /// The index of the member that gives the data, in a broadcast.
    pub root: Option<usize>,
    /// The settings that must agree.
    pub settings: u64,
}

impl Spec {
    /// An allreduce of so many elements.
    #[must_use]
    pub fn all_reduce(dtype: DataType, reduction: Reduction, count: usize) -> Spec {
        Spec {
            kind: OpKind::AllReduce,
            dtype,
            reduction,
            launches: vec![count],
            list: None,
            pieces: Vec::new(),
            root: None,
            settings: 0,
        }
    }

    /// A broadcast from the member of this index.
    #[must_use]
    pub fn broadcast(dtype: DataType, count: usize, root: usize) -> Spec {
        let moved = Spec::all_reduce(dtype, Reduction::Sum, count);
        Spec { kind: OpKind::Broadcast, root: Some(root), ..moved }
    }

    /// An allgather of so many elements of each member.
    #[must_use]
    pub fn all_gather(dtype: DataType, pieces: Vec<usize>) -> Spec {
        let moved = Spec::all_reduce(dtype, Reduction::Sum, pieces.iter().sum());
        Spec { kind: OpKind::AllGather, pieces, ..moved }
    }

    /// A barrier.
    #[must_use]
    pub fn barrier() -> Spec {
        Spec { kind: OpKind::Barrier, ..Spec::all_reduce(DataType::Uint8, Reduction::Sum, 0) }
    }

    /// What the engine is told to do in one launch. `members`: the ranks of the world, by index.
    #[must_use]
    pub fn work(&self, launch: usize, members: &[Rank]) -> Work {
        let bytes = self.launches[launch] * self.dtype.size();
        let work = match self.kind {
            OpKind::AllReduce => Work::all_reduce(self.dtype, self.reduction, bytes),
            OpKind::Barrier => Work::barrier(),
            OpKind::AllGather => Work::all_gather(self.dtype, &self.pieces),
            OpKind::Broadcast => {
                let root = self.root.expect("a broadcast has a root");
                Work::broadcast(self.dtype, bytes, root, members[root])
            }
        };
        match &self.list {
            Some((sizes, agreed)) => work.of_list(Parts::of(sizes).and(*agreed), 0),
            None => work,
        }
    }

    /// Elements of the input of a member, in one launch.
    #[must_use]
    pub fn given(&self, launch: usize, member: usize) -> usize {
        if self.kind == OpKind::AllGather { self.pieces[member] } else { self.launches[launch] }
    }

    /// The first element of the output that is a member's own, in place.
    #[must_use]
    pub fn own_start(&self, member: usize) -> usize {
        self.pieces.iter().take(member).sum()
    }

    /// The first field, in the order in which messages name them, in which two ranks' calls differ.
    #[must_use]
    pub fn difference(&self, other: &Spec, launch: usize) -> Option<&'static str> {
        let product = |spec: &Spec| Product::of_settings(spec.settings);
        let parts = |spec: &Spec| (spec.list.clone(), spec.pieces.clone());
        let count = |spec: &Spec| spec.launches.get(launch).copied();
        let fields = [
            ("product", product(self) != product(other)),
            ("kind", self.kind != other.kind),
            ("dtype", self.dtype != other.dtype),
            ("reduction", self.reduction != other.reduction),
            ("root", self.root != other.root),
            ("count", count(self) != count(other)),
            ("parts", parts(self) != parts(other)),
            ("settings", self.settings >> 8 != other.settings >> 8),
        ];
        fields.into_iter().find_map(|(field, differs)| differs.then_some(field))
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.dtype)?;
        match self.kind {
            OpKind::AllReduce => write!(f, " {} of {:?}", self.reduction, self.launches)?,
            OpKind::Broadcast => write!(f, " of {:?} from index {}", self.launches, self.root.unwrap_or(0))?,
            OpKind::AllGather => write!(f, " of {:?}", self.pieces)?,
            OpKind::Barrier => {}
        }
        if self.settings != 0 { write!(f, ", settings {:x}", self.settings) } else { Ok(()) }
    }
}
