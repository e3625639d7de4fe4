//! Puts the fused ops into the graph.
//!
//! A fused op takes the inputs of its members, tensors in order and then all their control edges. Each member becomes an
//! `Identity` of the same name behind it, so that whoever used or fetched the member finds its result where it was.

use std::collections::{BTreeSet, HashSet};

use crate::graph::{Graph, Node};
use crate::planning::{self, Fusion, Split};
use crate::wire::{Malformed, put_bytes, put_number};

pub(crate) const FUSED_OP: &str = "HcomAllReduceFused";

/// A graph that was rewritten, and what was fused in it.
#[derive(Debug)]
pub(crate) struct Rewritten {
    pub(crate) graph: Vec<u8>,
    pub(crate) launches: Vec<Launch>,
}

/// One fused op.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) group: String,
    pub(crate) dtype: i32,
    pub(crate) fusion: i64,
    pub(crate) fusion_id: i64,
    pub(crate) members: Vec<String>,
    pub(crate) bytes: u64,
}

/// Fuses what can be fused; `None` if there is nothing, and the graph may stay as it is.
///
/// # Errors
/// The bytes are no graph.
pub(crate) fn rewrite(bytes: &[u8], split: &Split<'_>) -> Result<Option<Rewritten>, Malformed> {
    let graph = Graph::decode(bytes)?;
    let fusions = planning::plan(&graph, split)?;
    if fusions.is_empty() {
        return Ok(None);
    }
    let mut replaced: Vec<Option<Vec<u8>>> = vec![None; graph.nodes.len()];
    let mut names: HashSet<String> = graph.nodes.iter().map(|node| node.name.to_owned()).collect();
    let (mut added, mut launches) = (Vec::new(), Vec::new());
    for fusion in &fusions {
        let name = unused_name(&graph.nodes[fusion.members[0]], fusion.members.len(), &mut names);
        added.push(fused_node(&graph, fusion, &name)?);
        for (output, member) in fusion.members.iter().enumerate() {
            replaced[*member] = Some(identity(&graph.nodes[*member], &name, output));
        }
        launches.push(launch(&graph, fusion)?);
    }
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 8);
    for (node, replaced) in graph.nodes.iter().zip(&replaced) {
        put_bytes(&mut out, 1, replaced.as_deref().unwrap_or(node.raw));
    }
    for node in &added {
        put_bytes(&mut out, 1, node);
    }
    for field in &graph.rest {
        out.extend_from_slice(field);
    }
    Ok(Some(Rewritten { graph: out, launches }))
}

/// A name that is the same on every rank, as far as the first member's is.
fn unused_name(first: &Node<'_>, count: usize, names: &mut HashSet<String>) -> String {
    let base = format!("{}/fused_{count}", first.name);
    let mut name = base.clone();
    let mut number = 1;
    while !names.insert(name.clone()) {
        name = format!("{base}_{number}");
        number += 1;
    }
    name
}

fn fused_node(graph: &Graph<'_>, fusion: &Fusion, name: &str) -> Result<Vec<u8>, Malformed> {
    let first = &graph.nodes[fusion.members[0]];
    let mut node = Vec::new();
    put_bytes(&mut node, 1, name.as_bytes());
    put_bytes(&mut node, 2, FUSED_OP.as_bytes());
    let mut control = BTreeSet::new();
    for member in &fusion.members {
        for input in &graph.nodes[*member].inputs {
            if input.starts_with('^') {
                control.insert(*input);
            } else {
                put_bytes(&mut node, 3, input.as_bytes());
            }
        }
    }
    for input in control {
        put_bytes(&mut node, 3, input.as_bytes());
    }
    put_bytes(&mut node, 4, first.device.as_bytes());
    for name in ["T", "reduction", "group"] {
        put_attribute(&mut node, name, first.attribute(name));
    }
    let count = i64::try_from(fusion.members.len()).map_err(|_| Malformed)?;
    // 1.15 puts no defaults into what its optimiser makes: every attribute must be there.
    for (name, value) in [("N", count), ("fusion", fusion.fusion), ("fusion_id", fusion.fusion_id)] {
        let mut number = Vec::new();
        put_number(&mut number, 3, value.cast_unsigned());
        put_attribute(&mut node, name, &number);
    }
    put_attribute(&mut node, "tag", first.attribute("tag"));
    let (key, members) = (fusion.key.as_str(), fusion.names.join("\n"));
    for (name, text) in [("key", key), ("members", &members), ("alone", &fusion.alone), ("turn", "")] {
        let mut value = Vec::new();
        put_bytes(&mut value, 2, text.as_bytes());
        put_attribute(&mut node, name, &value);
    }
    Ok(node)
}

fn identity(member: &Node<'_>, fused: &str, output: usize) -> Vec<u8> {
    let mut node = Vec::new();
    put_bytes(&mut node, 1, member.name.as_bytes());
    put_bytes(&mut node, 2, b"Identity");
    let input = if output == 0 { fused.to_owned() } else { format!("{fused}:{output}") };
    put_bytes(&mut node, 3, input.as_bytes());
    put_bytes(&mut node, 4, member.device.as_bytes());
    put_attribute(&mut node, "T", member.attribute("T"));
    node
}

fn put_attribute(node: &mut Vec<u8>, name: &str, value: &[u8]) {
    let mut entry = Vec::new();
    put_bytes(&mut entry, 1, name.as_bytes());
    put_bytes(&mut entry, 2, value);
    put_bytes(node, 5, &entry);
}

fn launch(graph: &Graph<'_>, fusion: &Fusion) -> Result<Launch, Malformed> {
    let first = &graph.nodes[fusion.members[0]];
    Ok(Launch {
        group: first.text("group")?.to_owned(),
        dtype: crate::node_def::data_type(first.attribute("T"))?,
        fusion: fusion.fusion,
        fusion_id: fusion.fusion_id,
        members: fusion.members.iter().map(|member| graph.nodes[*member].name.to_owned()).collect(),
        bytes: fusion.bytes,
    })
}
