//! Transport of charges: batches of `CHARGE_BATCH` on one lane. Groups equal charges, encodes the
//! groups, and divides the reply among the charges.

mod charge_groups;

use std::sync::Arc;

use redis::{Cmd, Value};

use self::charge_groups::{ChargeGroup, ChargeGroups, GroupMember};
use super::{
    batcher::{self, BatchTransport},
    call_fault::{CallFault, classify_reply},
    command_arg_writers::{write_concatenated, write_number, write_texts},
    connection_lanes::{ConnectionLanes, TrackedConnection},
    raw_charge_reply::{ChargeReplyReader, RawChargeReply},
    script_sources::CHARGE_BATCH,
};
use crate::store::key_names::KeyNames;
use crate::{
    durations::ceil_millis,
    error::{Error, ErrorKind},
    key::Key,
    store::{
        key_names::CounterKeyKind,
        rate::{ChargeCommand, ChargeItem, GcraRate, MAX_ITEMS_PER_CHARGE, QuotaRule},
    },
};

/// Approximate number of bytes of one counter.
const BYTES_PER_COUNTER: usize = 128;

/// Approximate number of arguments of one counter.
const ARGS_PER_COUNTER: usize = 8;

/// Transport of one lane.
pub(super) struct ChargeTransport {
    pub(super) lanes: Arc<ConnectionLanes>,
    pub(super) lane: usize,
    pub(super) keys: KeyNames,
}

/// Charge waiting to be sent.
pub(super) struct QueuedCharge {
    pub(super) charge: ChargeCommand,
    tag_hash: u64,
}

impl QueuedCharge {
    pub(super) fn new(charge: ChargeCommand) -> Self {
        Self { tag_hash: charge.tag.fnv_hash(), charge }
    }

    pub(super) fn shard(&self) -> u16 {
        Key::shard_of_hash(self.tag_hash)
    }

    fn has_same_tag(&self, other: &Self) -> bool {
        self.tag_hash == other.tag_hash && self.charge.tag == other.charge.tag
    }

    /// Returns true if both charges can be one step of the script.
    ///
    /// - A query (no repetitions) does not merge with a charge: it reports the state before.
    /// - Charges with a penalty do not merge: each refusal would have to be told apart.
    fn can_merge_with(&self, other: &Self) -> bool {
        let (a, b) = (&self.charge, &other.charge);
        (a.repetitions == 0) == (b.repetitions == 0)
            && (Arc::ptr_eq(&a.items, &b.items) || a.items == b.items)
            && a.items.iter().all(|item| item.penalty.is_none())
    }
}

pub(super) struct ChargePayload {
    command: Cmd,
    groups: Vec<ChargeGroup>,
    members: Vec<GroupMember>,
}

impl BatchTransport for ChargeTransport {
    type Command = QueuedCharge;
    type Reply = Result<RawChargeReply, Error>;
    type BatchConnection = TrackedConnection;
    type Payload = ChargePayload;

    const MAX_WEIGHT: usize = MAX_ITEMS_PER_CHARGE;
    // A repeated charge would count twice.
    const REPEATABLE: bool = false;

    fn weight(queued: &QueuedCharge) -> usize {
        queued.charge.items.len()
    }

    fn reply_count(_: &QueuedCharge) -> usize {
        1
    }

    async fn connection(&self) -> Result<TrackedConnection, Error> {
        self.lanes.connection(self.lane).await
    }

    fn encode<'a>(
        &self,
        commands: impl Iterator<Item = &'a QueuedCharge> + Clone,
        by_text: bool,
    ) -> ChargePayload {
        let mut charge_groups = ChargeGroups::default();
        let members = commands.map(|queued| charge_groups.assign(queued)).collect();
        let command = build_command(&self.keys, &charge_groups.groups, by_text);
        let groups = charge_groups.groups.into_iter().map(|(_, group)| group).collect();
        ChargePayload { command, groups, members }
    }

    async fn send(
        &self,
        connection: &mut TrackedConnection,
        payload: &ChargePayload,
    ) -> Result<Vec<Self::Reply>, batcher::BatchFault> {
        let reply = connection.connection.send_packed_command(&payload.command).await;
        match classify_reply(connection, reply) {
            Ok(reply) => payload.split_reply(reply).map_err(batcher::BatchFault::Failed),
            Err((CallFault::NoScript, _)) => Err(batcher::BatchFault::NoScript),
            Err((CallFault::NotExecuted, _)) => Err(batcher::BatchFault::NotExecuted),
            Err((CallFault::ConnectionLost, _)) => Err(batcher::BatchFault::ConnectionLost),
            Err((fault, error)) => {
                Err(batcher::BatchFault::Failed(fault.into_error(CHARGE_BATCH.name, error)))
            }
        }
    }

    fn handle_timeout(&self, connection: &TrackedConnection) {
        connection.record_timeout();
    }
}

impl ChargePayload {
    /// Splits the reply of a batch into one reply per charge.
    #[expect(clippy::indexing_slicing, reason = "the indices belong to the counted groups")]
    fn split_reply(&self, reply: Value) -> Result<Vec<Result<RawChargeReply, Error>>, Error> {
        let protocol_error = || Error::new(ErrorKind::Protocol, CHARGE_BATCH.name);
        let Value::BulkString(packed) = reply else { return Err(protocol_error()) };
        let mut reader = ChargeReplyReader::new(&packed)?;
        let mut read_reply = |group: &ChargeGroup| {
            reader.next_reply(group.value_count, group.times, group.fixed_window)
        };
        if let [only] = &*self.groups {
            let reply = read_reply(only)?;
            return Ok(self.members.iter().map(|member| member.extract_reply(&reply)).collect());
        }
        // Allocated once; `collect` into a `Result` does not know the length.
        let mut replies = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            replies.push(read_reply(group)?);
        }
        Ok(self.members.iter().map(|member| member.extract_reply(&replies[member.group])).collect())
    }
}

/// Builds one call of these groups, in this order. On a single server they may be of any shards, in
/// a cluster they are of one.
fn build_command(keys: &KeyNames, groups: &[(&QueuedCharge, ChargeGroup)], by_text: bool) -> Cmd {
    let counter_count: usize = groups.iter().map(|(queued, _)| queued.charge.items.len()).sum();
    let key_count: usize = groups.iter().map(|(queued, _)| counter_key_count(&queued.charge)).sum();
    let script =
        if by_text { ["EVAL", CHARGE_BATCH.source] } else { ["EVALSHA", CHARGE_BATCH.sha1()] };
    let mut out = Cmd::with_capacity(
        3 + ARGS_PER_COUNTER * counter_count,
        script[1].len() + 64 + BYTES_PER_COUNTER * counter_count,
    );
    write_texts(&mut out, script);
    let guard_key = groups.first().and_then(|(queued, _)| keys.slot_guard_key(queued.shard()));
    write_number(&mut out, (key_count + guard_key.iter().len()) as u64);
    for (queued, _) in groups {
        write_keys(keys, queued, &mut out);
    }
    guard_key.iter().for_each(|parts| write_concatenated(&mut out, parts));
    write_groups(groups, &mut out);
    out
}

/// Writes the groups. Consecutive groups of one charge each, by one fixed window with the terms of
/// the group before them, are written as their number.
fn write_groups(groups: &[(&QueuedCharge, ChargeGroup)], out: &mut Cmd) {
    let (mut previous_terms, mut repeats) = (None, 0);
    for (queued, group) in groups {
        let terms = single_fixed_window(&queued.charge);
        if terms.is_some() && terms == previous_terms && group.times == 1 {
            repeats += 1;
            continue;
        }
        write_repeats(&mut repeats, out);
        write_args(&queued.charge, group.times, out);
        previous_terms = terms;
    }
    write_repeats(&mut repeats, out);
}

fn write_repeats(repeats: &mut u64, out: &mut Cmd) {
    if *repeats > 0 {
        write_texts(out, ["="]);
        write_number(out, std::mem::take(repeats));
    }
}

/// Returns rule and cost of a charge of one fixed window and nothing else.
fn single_fixed_window(charge: &ChargeCommand) -> Option<(QuotaRule, u64)> {
    match &*charge.items {
        [ChargeItem { rule: rule @ QuotaRule::Fixed { .. }, cost, penalty: None, .. }] => {
            Some((*rule, *cost))
        }
        _ => None,
    }
}

fn counter_key_count(charge: &ChargeCommand) -> usize {
    charge.items.iter().map(|item| 1 + usize::from(item.penalty.is_some())).sum()
}

fn write_keys(keys: &KeyNames, queued: &QueuedCharge, out: &mut Cmd) {
    let (tag, shard) = (&queued.charge.tag, queued.shard());
    for item in &*queued.charge.items {
        let (algorithm, counter_name) = (item.rule.algorithm(), (&*item.policy, &item.subject));
        write_concatenated(
            out,
            &keys.counter_parts(tag, shard, CounterKeyKind::spent_units(algorithm), counter_name),
        );
        if item.penalty.is_some() {
            write_concatenated(
                out,
                &keys.counter_parts(tag, shard, CounterKeyKind::refusals(algorithm), counter_name),
            );
        }
    }
}

fn write_args(charge: &ChargeCommand, times: u64, out: &mut Cmd) {
    if let Some((rule, cost)) = single_fixed_window(charge) {
        write_counter(&rule, cost, out);
        write_number(out, times);
        return;
    }
    write_texts(out, ["m"]);
    write_number(out, charge.items.len() as u64);
    write_number(out, times);
    for item in &*charge.items {
        write_counter(&item.rule, item.cost, out);
        let (max_refusals, block_ms) =
            item.penalty.map_or((0, 0), |p| (p.after_refusals.max(1), ceil_millis(p.block_for)));
        write_number(out, max_refusals.into());
        write_number(out, block_ms);
    }
}

/// Writes one counter as the charge scripts read it: its rule, and the units to take.
pub(super) fn write_counter(rule: &QuotaRule, cost: u64, out: &mut Cmd) {
    // More than any limit, so that it is refused, and within the integers of Lua.
    let units = cost.min(crate::store::rate::MAX_UNITS + 1);
    match *rule {
        QuotaRule::Fixed { limit, window } => {
            write_texts(out, ["f"]);
            [limit, ceil_millis(window), units].iter().for_each(|n| write_number(out, *n));
        }
        QuotaRule::Sliding { limit, window } => {
            write_texts(out, ["s"]);
            [limit, ceil_millis(window), units].iter().for_each(|n| write_number(out, *n));
        }
        QuotaRule::Gcra { limit, window, burst } => {
            let rate = GcraRate::new(limit, window, burst);
            write_texts(out, ["g"]);
            let numbers = [rate.max_debt, ceil_millis(window), rate.units_to_parts(cost)];
            numbers.iter().for_each(|n| write_number(out, *n));
            [rate.parts_per_unit, rate.parts_per_tick, rate.tick_us]
                .iter()
                .for_each(|n| write_number(out, *n));
        }
    }
}
