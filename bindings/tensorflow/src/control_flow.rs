//! Which nodes run together: two nodes may be fused only if the one runs whenever the other does.
//!
//! TensorFlow's graphs, as they are executed, know loops and branches as nodes of a few kinds: `Enter` and `Exit` lead
//! into a loop's frame and out of it, `NextIteration` back to its start, `Switch` sends its input to one of its outputs,
//! and `Merge` takes what comes first. So each node gets a signature: the frames that it is in, and the outputs of
//! switches that it depends on. Equal signatures run together. Whoever cannot be sure gets none.

use std::collections::BTreeSet;

use crate::graph::{Edge, Graph, Node};
use crate::node_def;
use crate::tag::without_numbers;

/// Under what a node runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Signature {
    /// Frames of loops, the outermost first.
    frames: Vec<Vec<u8>>,
    /// The depth of frames, then node and output of what decides, and which way.
    conditions: BTreeSet<(usize, usize, Option<u32>, u32)>,
}

impl Signature {
    /// The signature in words that are the same on every rank; empty outside of loops and branches.
    pub(crate) fn text(&self, graph: &Graph<'_>) -> String {
        let frame = |value: &Vec<u8>| {
            let name = node_def::bytes(value).unwrap_or_default();
            without_numbers(&String::from_utf8_lossy(name))
        };
        let condition = |(depth, node, output, way): &(usize, usize, Option<u32>, u32)| {
            let name = without_numbers(graph.nodes[*node].name);
            format!("{depth} {name}:{} {way}", output.map_or_else(|| "^".into(), |output| output.to_string()))
        };
        let mut conditions: Vec<String> = self.conditions.iter().map(condition).collect();
        conditions.sort();
        self.frames.iter().map(frame).chain(conditions).collect::<Vec<_>>().join("\n")
    }
}

fn is_switch(node: &Node<'_>) -> bool {
    matches!(node.op, "Switch" | "RefSwitch" | "_SwitchN")
}

fn is_next_iteration(node: &Node<'_>) -> bool {
    matches!(node.op, "NextIteration" | "RefNextIteration")
}

/// The nodes so that each comes after those that it depends on, leaving out the edges back to a loop's start; none if
/// that is impossible. `group` gives the same number to nodes that are to be one; its numbers are below `groups`.
pub(crate) fn topological_order(graph: &Graph<'_>, group: &[usize], groups: usize) -> Option<Vec<usize>> {
    let mut waits_for = vec![0_usize; groups];
    let mut successors: Vec<Vec<usize>> = vec![Vec::new(); groups];
    for (node, edges) in graph.edges.iter().enumerate() {
        for edge in edges.iter().filter(|edge| !is_next_iteration(&graph.nodes[edge.from])) {
            successors[group[edge.from]].push(group[node]);
            waits_for[group[node]] += 1;
        }
    }
    let mut order: Vec<usize> = (0..groups).filter(|group| waits_for[*group] == 0).collect();
    let mut done = 0;
    while let Some(now) = order.get(done).copied() {
        done += 1;
        for next in &successors[now] {
            waits_for[*next] -= 1;
            if waits_for[*next] == 0 {
                order.push(*next);
            }
        }
    }
    (order.len() == groups).then_some(order)
}

/// The signature of each node; `order` is topological.
pub(crate) fn signatures(graph: &Graph<'_>, order: &[usize]) -> Vec<Option<Signature>> {
    let mut found: Vec<Option<Signature>> = vec![None; graph.nodes.len()];
    for index in order {
        found[*index] = signature(graph, *index, &found);
    }
    found
}

fn signature(graph: &Graph<'_>, index: usize, known: &[Option<Signature>]) -> Option<Signature> {
    let node = &graph.nodes[index];
    let mut result: Option<Signature> = None;
    let forward = graph.edges[index].iter().filter(|edge| !is_next_iteration(&graph.nodes[edge.from]));
    for edge in forward {
        let arriving = along(graph, *edge, known)?;
        result = Some(match result {
            None => arriving,
            Some(so_far) => meet(so_far, arriving, matches!(node.op, "Merge" | "RefMerge"))?,
        });
    }
    let mut result = result.unwrap_or_default();
    match node.op {
        "Enter" | "RefEnter" => result.frames.push(node.attribute("frame_name").to_vec()),
        "Exit" | "RefExit" => {
            result.frames.pop()?;
            let depth = result.frames.len();
            result.conditions.retain(|condition| condition.0 <= depth);
        }
        _ => {}
    }
    Some(result)
}

/// What runs at the end of an edge runs under this, as far as this edge goes.
fn along(graph: &Graph<'_>, edge: Edge, known: &[Option<Signature>]) -> Option<Signature> {
    let mut signature = known[edge.from].clone()?;
    if let (true, Some(way)) = (is_switch(&graph.nodes[edge.from]), edge.output) {
        let decided_by = graph.edges[edge.from].get(1)?;
        let depth = signature.frames.len();
        signature.conditions.insert((depth, decided_by.from, decided_by.output, way));
    }
    Some(signature)
}

fn meet(first: Signature, second: Signature, any: bool) -> Option<Signature> {
    if first.frames != second.frames {
        return None;
    }
    let conditions = if any {
        first.conditions.intersection(&second.conditions).copied().collect()
    } else {
        first.conditions.union(&second.conditions).copied().collect()
    };
    Some(Signature { frames: first.frames, conditions })
}
