//! Which allreduces of a graph become one.
//!
//! Candidates are sums. Those of one group, data type, device, kind of fusion and `fusion_id` form a set, in an order
//! that is the same on every rank: by tag, numbers in it by their value. A set falls apart by control flow (`control_flow`) and by
//! depth, the largest number of its members on a path to a member: members of one depth do not depend on each other.
//! With `fusion=1` what is left is cut into segments by the group's split strategy. At last, two fused sets may depend
//! on each other in both directions though no two members do; so the graph with the sets contracted must have no cycle,
//! and a set that would make one is left alone.

use std::collections::BTreeMap;

use crate::control_flow::{Signature, signatures, topological_order};
use crate::graph::{Graph, Node};
use crate::kernel::MAX_INPUT_BYTES;
use crate::node_def;
use crate::tag::{self, without_numbers};
use crate::wire::Malformed;

pub(crate) const OP: &str = "HcomAllReduce";

/// Cuts an ordered list of sizes in bytes into segments: gives the end of each, the last being the list's length.
pub(crate) type Split<'a> = dyn Fn(&str, &[u64]) -> Vec<usize> + 'a;

/// Allreduces that become one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fusion {
    /// Indices of nodes, in the order in which their data is laid out.
    pub(crate) members: Vec<usize>,
    pub(crate) fusion: i64,
    pub(crate) fusion_id: i64,
    /// Together; 0 if the size of one is not known.
    pub(crate) bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key<'a> {
    fusion: i64,
    fusion_id: i64,
    group: &'a str,
    dtype: i32,
    device: &'a str,
    signature: Signature,
}

/// A candidate: its order, its node, its size.
struct Member {
    order: Vec<Part>,
    node: usize,
    bytes: u64,
}

/// A piece of a name: numbers compare by value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Number(usize, String),
    Text(String),
}

fn natural_order(name: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = name;
    while let Some(first) = rest.bytes().next() {
        let digit = first.is_ascii_digit();
        let end = rest.bytes().position(|byte| byte.is_ascii_digit() != digit).unwrap_or(rest.len());
        let (part, left) = rest.split_at(end);
        parts.push(if digit {
            let digits = part.trim_start_matches('0');
            Part::Number(digits.len(), digits.into())
        } else {
            Part::Text(part.into())
        });
        rest = left;
    }
    parts
}

/// What all ranks call a member.
pub(crate) fn member_name(node: &Node<'_>) -> Result<String, Malformed> {
    Ok(format!("{}/{}", node.text("tag")?, without_numbers(node.name)))
}

/// What to fuse; empty if nothing.
///
/// # Errors
/// An attribute of an allreduce is malformed.
pub(crate) fn plan(graph: &Graph<'_>, split: &Split<'_>) -> Result<Vec<Fusion>, Malformed> {
    if graph.nodes.iter().filter(|node| node.op == OP).nth(1).is_none() {
        return Ok(Vec::new());
    }
    let each: Vec<usize> = (0..graph.nodes.len()).collect();
    let Some(order) = topological_order(graph, &each, each.len()) else { return Ok(Vec::new()) };
    let signatures = signatures(graph, &order);
    let mut planned = Vec::new();
    for (key, members) in sets(graph, &signatures)? {
        for mut members in by_depth(graph, &order, members) {
            members.sort_by(|a, b| (&a.order, a.node).cmp(&(&b.order, b.node)));
            let sizes: Vec<u64> = members.iter().map(|member| member.bytes).collect();
            let ends = if key.fusion == 2 { vec![members.len()] } else { split(key.group, &sizes) };
            cut(&key, &members, &ends, &mut planned);
        }
    }
    Ok(without_cycles(graph, planned))
}

fn sets<'a>(graph: &Graph<'a>, signatures: &[Option<Signature>]) -> Result<BTreeMap<Key<'a>, Vec<Member>>, Malformed> {
    let mut sets: BTreeMap<Key<'a>, Vec<Member>> = BTreeMap::new();
    for (index, node) in graph.nodes.iter().enumerate().filter(|(_, node)| node.op == OP) {
        let fusion = node.integer("fusion", 1)?;
        let Some(signature) = &signatures[index] else { continue };
        if !(1..=2).contains(&fusion) || node.text("reduction")? != "sum" || tag::is_unnamed(node.text("tag")?) {
            continue;
        }
        let key = Key {
            fusion,
            fusion_id: if fusion == 2 { node.integer("fusion_id", -1)? } else { -1 },
            group: node.text("group")?,
            dtype: node_def::data_type(node.attribute("T"))?,
            device: node.device,
            signature: signature.clone(),
        };
        let bytes = u64::try_from(node.integer("bytes", -1)?).unwrap_or(0);
        let member = Member { order: natural_order(&member_name(node)?), node: index, bytes };
        sets.entry(key).or_default().push(member);
    }
    Ok(sets)
}

/// The members of a set by how many others there are at most on a path to them.
fn by_depth(graph: &Graph<'_>, order: &[usize], members: Vec<Member>) -> Vec<Vec<Member>> {
    if members.len() < 2 {
        return Vec::new();
    }
    let mut is_member = vec![false; graph.nodes.len()];
    for member in &members {
        is_member[member.node] = true;
    }
    // The edges back to a loop's start find the depth of their origin still 0, which is right: they count for nothing.
    let mut depth = vec![0_usize; graph.nodes.len()];
    for index in order {
        let before = graph.edges[*index].iter().map(|edge| depth[edge.from] + usize::from(is_member[edge.from]));
        depth[*index] = before.max().unwrap_or(0);
    }
    let mut classes: BTreeMap<usize, Vec<Member>> = BTreeMap::new();
    for member in members {
        classes.entry(depth[member.node]).or_default().push(member);
    }
    classes.into_values().collect()
}

/// Makes fusions of the segments with these ends, none larger than one call may be.
fn cut(key: &Key<'_>, members: &[Member], ends: &[usize], planned: &mut Vec<Fusion>) {
    let mut start = 0;
    for end in ends {
        let segment = members.get(start..*end).unwrap_or_default();
        start = *end;
        let mut bytes = 0;
        let mut open = Vec::new();
        for member in segment {
            if bytes + member.bytes > MAX_INPUT_BYTES {
                close(key, &mut open, planned);
                bytes = 0;
            }
            bytes += member.bytes;
            open.push(member);
        }
        close(key, &mut open, planned);
    }
}

fn close(key: &Key<'_>, open: &mut Vec<&Member>, planned: &mut Vec<Fusion>) {
    let members = core::mem::take(open);
    if members.len() < 2 {
        return;
    }
    let known = members.iter().all(|member| member.bytes > 0);
    planned.push(Fusion {
        members: members.iter().map(|member| member.node).collect(),
        fusion: key.fusion,
        fusion_id: key.fusion_id,
        bytes: if known { members.iter().map(|member| member.bytes).sum() } else { 0 },
    });
}

/// Leaves out each fusion that makes a cycle with those before it.
fn without_cycles(graph: &Graph<'_>, planned: Vec<Fusion>) -> Vec<Fusion> {
    if is_acyclic(graph, &planned) {
        return planned;
    }
    let mut kept = Vec::new();
    for fusion in planned {
        kept.push(fusion);
        if !is_acyclic(graph, &kept) {
            kept.pop();
        }
    }
    kept
}

fn is_acyclic(graph: &Graph<'_>, fusions: &[Fusion]) -> bool {
    const NONE: usize = usize::MAX;
    let mut group = vec![NONE; graph.nodes.len()];
    for (number, fusion) in fusions.iter().enumerate() {
        for member in &fusion.members {
            group[*member] = number;
        }
    }
    let mut groups = fusions.len();
    for number in group.iter_mut().filter(|number| **number == NONE) {
        *number = groups;
        groups += 1;
    }
    topological_order(graph, &group, groups).is_some()
}

/// The split that holds if no strategy was set: two segments, 96.54 and 3.46 % of the bytes. The last member is in the
/// second in any case, unless it is the only one; sizes that are not known count as equal.
pub(crate) fn default_split(sizes: &[u64]) -> Vec<usize> {
    if sizes.len() < 3 {
        return vec![sizes.len()];
    }
    let known = sizes.iter().all(|size| *size > 0);
    let weight = |size: &u64| u128::from(if known { *size } else { 1 });
    let total: u128 = sizes.iter().map(weight).sum();
    let mut before = 0;
    let first = sizes.iter().take_while(|size| {
        let inside = before * 10_000 < total * 9_654;
        before += weight(size);
        inside
    });
    let end = first.count().min(sizes.len() - 1);
    vec![end, sizes.len()]
}
