//! Which allreduces of a graph become one.
//!
//! Candidates are sums. Those of one group, device, kind of fusion and `fusion_id` form a set. It falls apart by control flow
//! (`control_flow`) and by depth, the largest number of its members on a path to a member: members of one depth do not
//! depend on each other. What is left is ordered by name, which is the same on every rank, and with `fusion=1` cut into
//! segments by the group's split strategy (`plan::fusion`); each data type of a segment becomes one call. At last, two
//! calls may depend on each other in both directions though no two members do; so the graph with the calls contracted must
//! have no cycle, and what would make one is left alone.
//!
//! The calls of different ranks are matched by a key that says all this, and nothing of which members there are: so calls
//! with other members meet, and the engine tells each rank what the other ones have. That is why a segment of one member
//! is a fused call too. Only an allreduce that has no other one beside it is left as it is.

use std::collections::{BTreeMap, HashMap, HashSet};

use plan::fusion::order_by_name;

use crate::attributes::DATA_TYPES;
use crate::control_flow::{Signature, signatures, topological_order};
use crate::graph::{Graph, Node};
use crate::node_def;
use crate::rewrite::FUSED_OP;
use crate::tag::{self, Base, without_numbers};
use crate::wire::Malformed;

pub(crate) const OP: &str = "HcomAllReduce";

/// Cuts the gradients of a group, an ordered list of their sizes in bytes, into segments: gives the end of each, the last
/// being the list's length; nothing if they are to be left alone.
pub(crate) type Split<'a> = dyn Fn(&str, &[u64]) -> Vec<usize> + 'a;

/// Allreduces that become one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fusion {
    /// Indices of nodes, in the order that all ranks have.
    pub(crate) members: Vec<usize>,
    /// What the ranks call the members, in the same order.
    pub(crate) names: Vec<String>,
    /// The tags that the members of the whole set would have alone, one a line.
    pub(crate) alone: String,
    /// What the calls of the ranks are matched by.
    pub(crate) key: String,
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
    device: &'a str,
    signature: Signature,
}

/// A candidate: its node, what all ranks call it, its type, its size if that is known.
#[derive(Clone)]
struct Member {
    node: usize,
    name: String,
    /// Its tag where it is not fused.
    tag: String,
    dtype: i32,
    bytes: Option<u64>,
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
    let tags = graph_tags(graph)?;
    let mut planned = Vec::new();
    for (key, members) in sets(graph, &signatures, &tags)? {
        let tag = tags.get(key.group).copied().unwrap_or_default();
        for (depth, members) in by_depth(graph, &order, members).into_iter().filter(|(_, members)| members.len() > 1) {
            let names: Vec<&str> = members.iter().map(|member| &member.name[..]).collect();
            let members: Vec<Member> = order_by_name(&names).into_iter().map(|at| members[at].clone()).collect();
            let ends = if key.fusion == 2 { vec![members.len()] } else { split(key.group, &sizes(&members)) };
            let base = format!("{tag}{}.{depth}", text_of(graph, &key));
            cut(&key, &base, &members, &ends, &mut planned);
        }
    }
    tell_apart(graph, &mut planned)?;
    Ok(without_cycles(graph, planned))
}

/// For each group, what the graph is called: the shortest of its allreduces' tags, since what is inlined into a function has
/// longer ones. That of one allreduce might be missing on a rank.
fn graph_tags<'a>(graph: &Graph<'a>) -> Result<BTreeMap<&'a str, &'a str>, Malformed> {
    let mut tags: BTreeMap<&str, &str> = BTreeMap::new();
    for node in graph.nodes.iter().filter(|node| node.op == OP) {
        let (group, tag) = (node.text("group")?, node.text("tag")?);
        if tag::is_unnamed(tag) {
            continue;
        }
        let known = tags.entry(group).or_insert(tag);
        if (tag.len(), tag) < (known.len(), *known) {
            *known = tag;
        }
    }
    Ok(tags)
}

fn sets<'a>(
    graph: &Graph<'a>,
    signatures: &[Option<Signature>],
    tags: &BTreeMap<&str, &str>,
) -> Result<BTreeMap<Key<'a>, Vec<Member>>, Malformed> {
    let mut sets: BTreeMap<Key<'a>, Vec<Member>> = BTreeMap::new();
    for (index, node) in graph.nodes.iter().enumerate().filter(|(_, node)| node.op == OP) {
        let fusion = node.integer("fusion", 1)?;
        let Some(signature) = &signatures[index] else { continue };
        if !(1..=2).contains(&fusion) || node.text("reduction")? != "sum" || tag::is_unnamed(node.text("tag")?) {
            continue;
        }
        // The fused op has a name made of this one, and is an input by it. TensorFlow has no such names.
        if node.name.starts_with('^') || node.name.contains([':', '\n']) {
            continue;
        }
        let group = node.text("group")?;
        let key = Key {
            fusion,
            fusion_id: if fusion == 2 { node.integer("fusion_id", -1)? } else { -1 },
            group,
            device: node.device,
            signature: signature.clone(),
        };
        let member = Member {
            node: index,
            name: member_name(node, tags.get(group).copied().unwrap_or_default())?,
            tag: Base::new(node.text("tag")?, node.name).at(0, 0).into_owned(),
            dtype: node_def::data_type(node.attribute("T"))?,
            bytes: u64::try_from(node.integer("bytes", -1)?).ok(),
        };
        sets.entry(key).or_default().push(member);
    }
    Ok(sets)
}

/// What all ranks call a member of a graph with this tag.
fn member_name(node: &Node<'_>, graph: &str) -> Result<String, Malformed> {
    let (tag, name) = (node.text("tag")?, without_numbers(node.name));
    Ok(if tag == graph { name } else { format!("{tag}/{name}") })
}

/// The members of a set by how many others there are at most on a path to them.
fn by_depth(graph: &Graph<'_>, order: &[usize], members: Vec<Member>) -> BTreeMap<usize, Vec<Member>> {
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
    classes
}

/// The members' sizes; all the same if one is not known.
fn sizes(members: &[Member]) -> Vec<u64> {
    let sizes: Option<Vec<u64>> = members.iter().map(|member| member.bytes).collect();
    sizes.unwrap_or_else(|| vec![1; members.len()])
}

/// What of a set's key is the same on all ranks, as text. The group is not in it: calls of different groups never meet.
fn text_of(graph: &Graph<'_>, key: &Key<'_>) -> String {
    let mut text = match key.fusion {
        2 => format!("+id{}", key.fusion_id),
        _ => "+split".into(),
    };
    // Job and task differ between the ranks of a cluster.
    match key.device.rsplit_once("device:").map_or(key.device, |(_, device)| device) {
        "" | "CPU:0" => {}
        device => text.extend([".", device]),
    }
    let flow = key.signature.text(graph);
    if !flow.is_empty() {
        text.push_str(&format!(".{:016x}", digest(&flow)));
    }
    text
}

/// Makes calls of the segments with these ends: one for each data type.
fn cut(key: &Key<'_>, base: &str, members: &[Member], ends: &[usize], planned: &mut Vec<Fusion>) {
    let alone = members.iter().map(|member| &member.tag[..]).collect::<Vec<_>>().join("\n");
    let mut start = 0;
    for (segment, end) in ends.iter().enumerate() {
        let mut by_type: BTreeMap<i32, Vec<&Member>> = BTreeMap::new();
        for member in members.get(start..*end).unwrap_or_default() {
            by_type.entry(member.dtype).or_default().push(member);
        }
        start = *end;
        for (dtype, members) in by_type {
            let name = DATA_TYPES.iter().find(|(number, ..)| *number == dtype).map_or("", |(_, name, _)| name);
            let bytes: Option<u64> = members.iter().map(|member| member.bytes).sum();
            planned.push(Fusion {
                members: members.iter().map(|member| member.node).collect(),
                names: members.iter().map(|member| member.name.clone()).collect(),
                alone: alone.clone(),
                key: format!("{base}.{segment}.{name}"),
                fusion: key.fusion,
                fusion_id: key.fusion_id,
                bytes: bytes.unwrap_or(0),
            });
        }
    }
}

/// Numbers the calls of a group that have the same key, in the order of their first members' names. TensorFlow optimises a
/// graph more than once: what was fused before keeps its key to itself.
fn tell_apart(graph: &Graph<'_>, planned: &mut [Fusion]) -> Result<(), Malformed> {
    let mut same: HashMap<(&str, String), Vec<usize>> = HashMap::new();
    for (at, fusion) in planned.iter().enumerate() {
        let group = graph.nodes[fusion.members[0]].text("group")?;
        same.entry((group, fusion.key.clone())).or_default().push(at);
    }
    for places in same.into_values().filter(|places| places.len() > 1) {
        let names: Vec<String> = places.iter().map(|at| planned[*at].names[0].clone()).collect();
        for (number, at) in order_by_name(&names).into_iter().enumerate().skip(1) {
            planned[places[at]].key.push_str(&format!("~{}", number + 1));
        }
    }
    let fused = graph.nodes.iter().filter(|node| node.op == FUSED_OP);
    let taken: HashSet<(&str, &str)> =
        fused.map(|node| Ok((node.text("group")?, node.text("key")?))).collect::<Result<_, Malformed>>()?;
    for fusion in planned {
        let group = graph.nodes[fusion.members[0]].text("group")?;
        while taken.contains(&(group, &fusion.key)) {
            fusion.key.push_str("~again");
        }
    }
    Ok(())
}

/// FNV-1a of 64 bits: <http://www.isthe.com/chongo/tech/comp/fnv/>.
fn digest(text: &str) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Leaves out each fusion that makes a cycle with those before it.
fn without_cycles(graph: &Graph<'_>, mut planned: Vec<Fusion>) -> Vec<Fusion> {
    if is_acyclic(graph, &planned) {
        return planned;
    }
    // Which ones are left out must not depend on the order of nodes, which may differ between ranks.
    planned.sort_by(|a, b| a.key.cmp(&b.key));
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
