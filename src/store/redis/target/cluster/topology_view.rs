//! `TopologyView`: owners of the shards' hash slots, as one cluster node reports them.

use std::time::Duration;

use redis::Value;

use super::Endpoint;

/// Number of hash slots of every cluster.
const SLOT_COUNT: u16 = 16_384;

/// Returns the slot of keys with this hash tag: CRC16 (XMODEM), by the cluster specification.
pub(super) fn key_slot(tag: &[u8]) -> u16 {
    let crc = tag.iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % SLOT_COUNT
}

/// View of one node on the cluster.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TopologyView {
    pub(super) owners: Vec<Option<Endpoint>>,
    /// Masters first.
    pub(super) nodes: Vec<Endpoint>,
    /// `cluster-node-timeout` of this node, if it reports it.
    pub(super) node_timeout: Option<Duration>,
}

impl TopologyView {
    /// Parses the reply to `CLUSTER SLOTS`: entries of first slot, last slot, master, replicas.
    /// `replied_by` is the node that replied; a node without a name is on the same host.
    pub(super) fn parse(reply: Value, shard_slots: &[u16], replied_by: &Endpoint) -> Option<Self> {
        let Value::Array(rows) = reply else { return None };
        let (mut owners, mut masters, mut replicas) =
            (vec![None; shard_slots.len()], Vec::new(), Vec::new());
        for row in rows {
            let Value::Array(row) = row else { return None };
            let mut row = row.into_iter();
            let (first, last) = (parse_u16(&row.next()?)?, parse_u16(&row.next()?)?);
            let master = row.next().and_then(|node| parse_endpoint(node, replied_by));
            replicas.extend(row.filter_map(|node| parse_endpoint(node, replied_by)));
            // The slots have no reachable owner; their replica is none either.
            let Some(master) = master else { continue };
            let slots = first..=last;
            let owned = owners.iter_mut().zip(shard_slots).filter(|(_, s)| slots.contains(*s));
            owned.for_each(|(owner, _)| *owner = Some(master.clone()));
            masters.push(master);
        }
        masters.extend(replicas);
        let mut nodes: Vec<Endpoint> = Vec::new();
        masters.into_iter().for_each(|node| {
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        });
        Some(Self { owners, nodes, node_timeout: None })
    }
}

fn parse_u16(value: &Value) -> Option<u16> {
    match value {
        Value::Int(n) => u16::try_from(*n).ok(),
        _ => None,
    }
}

fn parse_endpoint(node: Value, replied_by: &Endpoint) -> Option<Endpoint> {
    let Value::Array(node) = node else { return None };
    let mut node = node.into_iter();
    let host = match node.next()? {
        Value::BulkString(host) if !host.is_empty() => String::from_utf8(host).ok()?,
        Value::SimpleString(host) if !host.is_empty() => host,
        _ => replied_by.0.clone(),
    };
    // `?` is a node without a known name yet.
    Some((host, parse_u16(&node.next()?)?)).filter(|(host, _)| host != "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_slots_match_cluster_specification() {
        assert_eq!(key_slot(b"123456789"), 0x31C3);
        assert_eq!(key_slot(b""), 0);
        assert_eq!(key_slot(b"foo"), 12_182);
    }

    #[test]
    fn shards_are_spread_over_all_thirds_of_slots() {
        let third =
            |shard: u16| usize::from(key_slot(shard.to_string().as_bytes()) / (SLOT_COUNT / 3 + 1));
        let mut counted = [0; 3];
        (0..crate::key::SHARD_COUNT).for_each(|shard| counted[third(shard)] += 1);
        assert!(counted.iter().all(|shards| *shards >= 16), "{counted:?}");
    }

    fn node_entry(host: &str, port: i64) -> Value {
        Value::Array(vec![Value::BulkString(host.into()), Value::Int(port)])
    }

    #[test]
    fn view_contains_masters_and_replicas() {
        let row = |first, last, nodes: Vec<Value>| {
            let mut row = vec![Value::Int(first), Value::Int(last)];
            row.extend(nodes);
            Value::Array(row)
        };
        let reply = Value::Array(vec![
            row(0, 99, vec![node_entry("a", 1), node_entry("b", 2)]),
            row(100, 199, vec![node_entry("", 3)]),
            row(200, 299, vec![node_entry("a", 1)]),
        ]);
        let view = TopologyView::parse(reply, &[50, 150, 250, 350], &("me".to_owned(), 9)).unwrap();
        let at = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!(view.owners, [at("a", 1), at("me", 3), at("a", 1), None]);
        let nodes: Vec<_> = [at("a", 1), at("me", 3), at("b", 2)].into_iter().flatten().collect();
        assert_eq!(view.nodes, nodes);
        assert_eq!(TopologyView::parse(Value::Nil, &[], &("me".to_owned(), 9)), None);
    }

    /// The replica can be queried, but owns none of its slots.
    #[test]
    fn replica_of_unnamed_master_is_not_owner() {
        let row = |first, last, nodes: [Value; 2]| {
            let bounds = [Value::Int(first), Value::Int(last)];
            Value::Array(bounds.into_iter().chain(nodes).collect())
        };
        let reply = Value::Array(vec![
            row(0, 99, [node_entry("?", 1), node_entry("b", 2)]),
            row(100, 199, [node_entry("c", 3), node_entry("?", 4)]),
        ]);
        let view = TopologyView::parse(reply, &[50, 150], &("me".to_owned(), 9)).unwrap();
        assert_eq!(view.owners, [None, Some(("c".to_owned(), 3))]);
        assert_eq!(view.nodes, [("c".to_owned(), 3), ("b".to_owned(), 2)]);
    }

    /// `cluster-preferred-endpoint-type unknown-endpoint`: the host of the queried node applies.
    #[test]
    fn nameless_master_has_host_of_queried_node() {
        let unnamed_master = Value::Array(vec![Value::Nil, Value::Int(3)]);
        let row =
            Value::Array(vec![Value::Int(0), Value::Int(99), unnamed_master, node_entry("b", 2)]);
        let view =
            TopologyView::parse(Value::Array(vec![row]), &[50], &("me".to_owned(), 9)).unwrap();
        assert_eq!(view.owners, [Some(("me".to_owned(), 3))]);
    }
}
