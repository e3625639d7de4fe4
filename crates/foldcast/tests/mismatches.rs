//! What differs between real processes is told on all of them, whoever differs, and nothing that can be set keeps it from
//! being told. (Every two fields at once, on up to five ranks: `crates/sim/tests/matrix.rs`.)

mod support;

use foldcast::{
    Buffers, CallOptions, Communicator, DataType, Error, Group, OpKind, Product, Rank, Reduction, Result, bytes_of_mut,
};
use support::{all_well, ranks_with, sum};

/// A call of any kind.
#[derive(Clone, Debug)]
struct Ask {
    kind: OpKind,
    dtype: DataType,
    reduction: Reduction,
    count: usize,
    root: usize,
    /// Lengths of the buffers of a list, or of the ranks' contributions to an allgather; in elements.
    parts: Vec<usize>,
    agreed: u64,
    product: Product,
    name: bool,
}

impl Ask {
    fn sum(count: usize) -> Ask {
        Ask {
            kind: OpKind::AllReduce,
            dtype: DataType::Float32,
            reduction: Reduction::Sum,
            count,
            root: 0,
            parts: Vec::new(),
            agreed: 0,
            product: Product::Host,
            name: false,
        }
    }

    fn make(&self, communicator: &Communicator, group: &Group) -> Result<()> {
        let name = self.name.then_some("call");
        let options = CallOptions { name, agreed: self.agreed, ..CallOptions::default() };
        communicator.set_product(self.product);
        // Types of 4 and of 8 bytes fit.
        let mut memory = vec![1_u64; self.count.max(self.parts.iter().sum()) + 1];
        let bytes = &mut bytes_of_mut(&mut memory)[..self.count * self.dtype.size()];
        let result = match self.kind {
            OpKind::AllReduce if !self.parts.is_empty() => {
                let mut rest = bytes;
                let mut list = Vec::new();
                for part in &self.parts {
                    let (first, others) = rest.split_at_mut(part * self.dtype.size());
                    list.push(Buffers::InPlace(first));
                    rest = others;
                }
                group.all_reduce_many(self.dtype, self.reduction, &mut list, &options)
            }
            OpKind::AllReduce => group.all_reduce(self.dtype, self.reduction, Buffers::InPlace(bytes), &options),
            OpKind::Broadcast => {
                group.broadcast(self.dtype, Rank::from_index(self.root), Buffers::InPlace(bytes), &options)
            }
            OpKind::AllGather => group.all_gather_unequal(self.dtype, &self.parts, Buffers::InPlace(bytes), &options),
            OpKind::Barrier => group.barrier(&options),
        };
        communicator.set_product(Product::Host);
        result
    }
}

/// What one rank does otherwise, and the field that is told.
fn cases(ranks: usize) -> Vec<(&'static str, Ask, Ask)> {
    let mut cases = Vec::new();
    for count in [6, 300_000] {
        let base = Ask::sum(count);
        let gather = Ask { kind: OpKind::AllGather, parts: vec![count / ranks; ranks], ..base.clone() };
        let gather = Ask { count: gather.parts.iter().sum(), ..gather };
        let list = Ask { parts: vec![2, count - 3, 1], ..base.clone() };
        let cast = Ask { kind: OpKind::Broadcast, ..base.clone() };
        let mut uneven = gather.parts.clone();
        uneven[0] += 1;
        uneven[ranks - 1] -= 1;
        cases.extend([
            ("kind", base.clone(), Ask { kind: OpKind::Barrier, count: 0, ..base.clone() }),
            ("kind", base.clone(), cast.clone()),
            ("dtype", base.clone(), Ask { dtype: DataType::Int32, ..base.clone() }),
            ("dtype", base.clone(), Ask { dtype: DataType::Int64, ..base.clone() }),
            ("reduction", base.clone(), Ask { reduction: Reduction::Max, ..base.clone() }),
            ("count", base.clone(), Ask::sum(count - 1)),
            ("count", base.clone(), Ask::sum(300_006 - count)),
            ("root", cast.clone(), Ask { root: 1, ..cast.clone() }),
            ("parts", gather.clone(), Ask { parts: uneven, ..gather.clone() }),
            ("parts", list.clone(), Ask { parts: vec![1, count - 3, 2], ..list.clone() }),
            ("parts", list.clone(), Ask { agreed: 7, ..list.clone() }),
            ("product", base.clone(), Ask { product: Product::AtlasA2, ..base.clone() }),
            ("dtype", base.clone(), Ask { dtype: DataType::Int32, reduction: Reduction::Max, ..base.clone() }),
        ]);
    }
    let named = cases.iter().map(|(field, common, other)| {
        (*field, Ask { name: true, ..common.clone() }, Ask { name: true, ..other.clone() })
    });
    let named: Vec<_> = named.collect();
    cases.extend(named);
    cases
}

fn every_rank_is_told(communicator: &Communicator) {
    let (ranks, rank) = (communicator.size(), communicator.rank().index());
    let group = communicator.world();
    for (field, common, other) in cases(ranks) {
        for odd in 0..ranks {
            let own = if rank == odd { &other } else { &common };
            let error = own.make(communicator, &group).expect_err("one rank differs");
            let Error::Mismatch(mismatch) = &error else { panic!("{own:?}: {error}") };
            let peer = if rank == odd { usize::from(odd == 0) } else { odd };
            assert_eq!((mismatch.field, mismatch.peer.index()), (field, peer), "{error}");
            assert_eq!(mismatch.values.len(), ranks, "{error}");
            let value = |rank: usize| &mismatch.values[rank].1;
            assert_eq!((&mismatch.expected, &mismatch.got), (value(rank), value(peer)), "{error}");
            for other in 0..ranks {
                assert_eq!(value(other) == value(odd), other == odd, "{error}");
                assert!(error.to_string().contains(&format!("rank {other}")), "{error}");
            }
            let total = f32::from(u16::try_from(ranks).expect("few"));
            let good = sum(&group, &[1.0], &CallOptions::default()).expect("the group stays usable");
            assert_eq!(good, [total]);
        }
    }
}

#[test]
fn every_field_is_told_on_every_rank() {
    for size in [2, 4] {
        let statuses = ranks_with("every_field_is_told_on_every_rank", &vec![[]; size], every_rank_is_told);
        all_well(&statuses);
    }
}

/// Every variable that there is, with a value that it may have; those that say where a rank is are the test's own.
#[test]
fn no_setting_keeps_it_from_being_told() {
    let settings: [[(&str, &str); 4]; 4] = [
        [("FOLDCAST_ALGO", "flat"), ("FOLDCAST_COSTS", "off"), ("FOLDCAST_THREADS", "1"), ("FOLDCAST_CORES", "1")],
        [
            ("FOLDCAST_ALGO", "one_shot"),
            ("FOLDCAST_TIMEOUT", "inf"),
            ("FOLDCAST_THREADS", "3"),
            ("FOLDCAST_CORES", "2"),
        ],
        [
            ("FOLDCAST_ALGO", "reduce_scatter_allgather"),
            ("FOLDCAST_WARN_AFTER", "inf"),
            ("FOLDCAST_POOL_BYTES", "0"),
            ("FOLDCAST_THREADS", "2"),
        ],
        [
            ("HCCL_EXEC_TIMEOUT", "0"),
            ("HCCL_CONNECT_TIMEOUT", "1000"),
            ("FOLDCAST_INIT_TIMEOUT", "inf"),
            ("FOLDCAST_THREADS", "2"),
        ],
    ];
    for set in settings {
        all_well(&ranks_with("no_setting_keeps_it_from_being_told", &[set; 2], every_rank_is_told));
    }
    // And each rank with others than the rest.
    all_well(&ranks_with("no_setting_keeps_it_from_being_told", &settings, every_rank_is_told));
}
