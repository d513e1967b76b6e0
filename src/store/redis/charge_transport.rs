//! Transport of charges: batches of `CHARGE_BATCH` on one lane. Groups equal charges, encodes the
//! groups, and divides the reply among the charges.

mod charge_groups;

use std::sync::Arc;

use redis::{Cmd, Value};

use self::charge_groups::{ChargeGroup, ChargeGroups, GroupMember};
use super::{
    batcher::{self, BatchTransport},
    call_fault::{CallFault, classify_reply},
    connection_lanes::{ConnectionLanes, TrackedConnection},
    lock_command_encoding::{write_concatenated, write_number, write_texts},
    raw_charge_reply::{ChargeReplyReader, RawChargeReply},
    scripts::CHARGE_BATCH,
};
use crate::store::key_names::KeyNames;
use crate::{
    clock::ceil_millis,
    error::{Error, ErrorKind},
    key::Key,
    store::{
        key_names::CounterKeyKind,
        rate::{ChargeCommand, ChargeItem, GcraRate, MAX_ITEMS_PER_CHARGE, QuotaRule},
    },
};

/// Approximate bytes and arguments of one counter.
const SIZE_HINT: (usize, usize) = (128, 8);

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

    fn weight(step: &QueuedCharge) -> usize {
        step.charge.items.len()
    }

    fn reply_count(_: &QueuedCharge) -> usize {
        1
    }

    async fn connection(&self) -> Result<TrackedConnection, Error> {
        self.lanes.connection(self.lane).await
    }

    fn encode<'a>(
        &self,
        steps: impl Iterator<Item = &'a QueuedCharge> + Clone,
        by_text: bool,
    ) -> ChargePayload {
        let mut firsts = ChargeGroups::default();
        let places = steps.map(|step| firsts.assign(step)).collect();
        let command = build_command(&self.keys, &firsts.groups, by_text);
        let groups = firsts.groups.into_iter().map(|(_, group)| group).collect();
        ChargePayload { command, groups, members: places }
    }

    async fn send(
        &self,
        path: &mut TrackedConnection,
        load: &ChargePayload,
    ) -> Result<Vec<Self::Reply>, batcher::BatchFault> {
        let answer = path.connection.send_packed_command(&load.command).await;
        match classify_reply(path, answer) {
            Ok(reply) => load.split_reply(reply).map_err(batcher::BatchFault::Failed),
            Err((CallFault::NoScript, _)) => Err(batcher::BatchFault::NoScript),
            Err((CallFault::NotExecuted, _)) => Err(batcher::BatchFault::NotExecuted),
            Err((CallFault::ConnectionLost, _)) => Err(batcher::BatchFault::ConnectionLost),
            Err((fault, error)) => {
                Err(batcher::BatchFault::Failed(fault.into_error(CHARGE_BATCH.name, error)))
            }
        }
    }

    fn handle_timeout(&self, path: &TrackedConnection) {
        path.record_timeout();
    }
}

impl ChargePayload {
    /// Splits the reply of a batch into one reply per charge.
    #[expect(clippy::indexing_slicing, reason = "the indices belong to the counted groups")]
    fn split_reply(&self, reply: Value) -> Result<Vec<Result<RawChargeReply, Error>>, Error> {
        let odd = || Error::new(ErrorKind::Protocol, CHARGE_BATCH.name);
        let Value::BulkString(packed) = reply else { return Err(odd()) };
        let mut reader = ChargeReplyReader::new(&packed)?;
        let mut group = |group: &ChargeGroup| {
            reader.next_reply(group.value_count, group.times, group.fixed_window)
        };
        if let [only] = &*self.groups {
            let counted = group(only)?;
            return Ok(self.members.iter().map(|place| place.extract_reply(&counted)).collect());
        }
        // Allocated once; `collect` into a `Result` does not know the length.
        let mut counted = Vec::with_capacity(self.groups.len());
        for each in &self.groups {
            counted.push(group(each)?);
        }
        Ok(self.members.iter().map(|place| place.extract_reply(&counted[place.group])).collect())
    }
}

/// Builds one call of these groups, in this order. On a single server they may be of any shards, in
/// a cluster they are of one.
fn build_command(keys: &KeyNames, groups: &[(&QueuedCharge, ChargeGroup)], by_text: bool) -> Cmd {
    let counters: usize = groups.iter().map(|(step, _)| step.charge.items.len()).sum();
    let names: usize = groups.iter().map(|(step, _)| key_count(&step.charge)).sum();
    let script =
        if by_text { ["EVAL", CHARGE_BATCH.source] } else { ["EVALSHA", CHARGE_BATCH.sha1()] };
    let mut out = Cmd::with_capacity(
        3 + SIZE_HINT.1 * counters,
        script[1].len() + 64 + SIZE_HINT.0 * counters,
    );
    write_texts(&mut out, script);
    let never = groups.first().and_then(|(step, _)| keys.slot_guard_key(step.shard()));
    write_number(&mut out, (names + never.iter().len()) as u64);
    for (step, _) in groups {
        write_keys(keys, step, &mut out);
    }
    never.iter().for_each(|parts| write_concatenated(&mut out, parts));
    write_groups(groups, &mut out);
    out
}

/// Writes the groups. Consecutive groups of one charge each, by one fixed window with the terms of
/// the group before them, are written as their number.
fn write_groups(groups: &[(&QueuedCharge, ChargeGroup)], out: &mut Cmd) {
    let (mut last, mut alike) = (None, 0);
    for (step, group) in groups {
        let terms = single_fixed_window(&step.charge);
        if terms.is_some() && terms == last && group.times == 1 {
            alike += 1;
            continue;
        }
        write_repeats(&mut alike, out);
        write_args(&step.charge, group.times, out);
        last = terms;
    }
    write_repeats(&mut alike, out);
}

fn write_repeats(alike: &mut u64, out: &mut Cmd) {
    if *alike > 0 {
        write_texts(out, ["="]);
        write_number(out, std::mem::take(alike));
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

fn key_count(charge: &ChargeCommand) -> usize {
    charge.items.iter().map(|item| 1 + usize::from(item.penalty.is_some())).sum()
}

fn write_keys(keys: &KeyNames, step: &QueuedCharge, out: &mut Cmd) {
    let (tag, shard) = (&step.charge.tag, step.shard());
    for item in &*step.charge.items {
        let (algorithm, of) = (item.rule.algorithm(), (&*item.policy, &item.subject));
        write_concatenated(
            out,
            &keys.counter_parts(tag, shard, CounterKeyKind::spent_units(algorithm), of),
        );
        if item.penalty.is_some() {
            write_concatenated(
                out,
                &keys.counter_parts(tag, shard, CounterKeyKind::refusals(algorithm), of),
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
        let (after, block) =
            item.penalty.map_or((0, 0), |p| (p.after_refusals.max(1), ceil_millis(p.block_for)));
        write_number(out, after.into());
        write_number(out, block);
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
            let pace = GcraRate::new(limit, window, burst);
            write_texts(out, ["g"]);
            let numbers = [pace.max_debt, ceil_millis(window), pace.units_to_parts(cost)];
            numbers.iter().for_each(|n| write_number(out, *n));
            [pace.parts_per_unit, pace.parts_per_tick, pace.tick_us]
                .iter()
                .for_each(|n| write_number(out, *n));
        }
    }
}
