//! What must hold whatever bytes TensorFlow hands over as a graph: for the test below and the fuzz target in `fuzz/`.

use std::collections::HashSet;

use plan::fusion::{Strategy, ends};

use crate::control_flow::topological_order;
use crate::graph::Graph;
use crate::rewrite::{FUSED_OP, rewrite};
use crate::wire::{self, Malformed};

fn by_default(_: &str, sizes: &[u64]) -> Vec<usize> {
    ends(sizes, &Strategy::default()).expect("the default fits any number")
}

/// An encoded graph.
///
/// # Panics
/// If something does not hold.
pub fn graph(bytes: &[u8]) {
    if let Ok(fields) = wire::fields(bytes).collect::<Result<Vec<_>, Malformed>>() {
        let whole: Vec<u8> = fields.iter().flat_map(|field| field.raw).copied().collect();
        assert_eq!(whole, bytes);
    }
    let before = Graph::decode(bytes);
    let Ok(rewritten) = rewrite(bytes, &by_default) else { return };
    let before = before.expect("what was rewritten can be read");
    let Some(rewritten) = rewritten else { return };
    let after = Graph::decode(&rewritten.graph).expect("what was made can be read");
    let new: Vec<_> = after.nodes.iter().skip(before.nodes.len()).collect();
    assert!(!new.is_empty() && new.len() == rewritten.launches.len());
    assert!(new.iter().all(|node| node.op == FUSED_OP), "{new:?}");
    let names = |graph: &Graph<'_>| -> Vec<String> {
        graph.nodes.iter().take(before.nodes.len()).map(|node| node.name.to_owned()).collect()
    };
    assert_eq!(names(&before), names(&after), "who fetched a node finds it where it was");
    assert_eq!(before.rest, after.rest);
    let each: Vec<usize> = (0..after.nodes.len()).collect();
    assert!(topological_order(&after, &each, each.len()).is_some(), "a cycle");
    let members = rewritten.launches.iter().flat_map(|launch| &launch.members);
    let mut fused = HashSet::new();
    assert!(members.into_iter().all(|name| fused.insert(name)), "fused twice");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion_tests::Writer;
    use ::hostile::drive;

    #[test]
    fn graphs() {
        let mut by_id = Writer::default();
        by_id.node("x", "Placeholder", &[], &[]).node("c", "NoOp", &[], &[]);
        by_id.reduce("a", &["x", "^c"], 2, 1, 4).reduce("b", &["x:1", "^c"], 2, 1, 8).node(
            "use",
            "Add",
            &["a", "b"],
            &[],
        );
        let mut by_strategy = Writer::default();
        by_strategy.node("x", "Placeholder", &[], &[]);
        for name in ["r_10", "r_2", "r", "r_1"] {
            by_strategy.reduce(name, &["x"], 1, -1, 4000);
        }
        let mut in_a_loop = Writer::default();
        in_a_loop.node("x", "Placeholder", &[], &[]).node("enter", "Enter", &["x"], &[]);
        in_a_loop.node("merge", "Merge", &["enter", "next"], &[]).node("switch", "Switch", &["merge", "x"], &[]);
        in_a_loop.reduce("a", &["switch:1"], 2, 0, 4).reduce("b", &["switch:1"], 2, 0, 4);
        in_a_loop.node("next", "NextIteration", &["a", "^b"], &[]).node("exit", "Exit", &["switch"], &[]);
        drive("graph", &[by_id.bytes, by_strategy.bytes, in_a_loop.bytes], graph);
    }
}
