//! Flights of `charge.lua` on one lane: which charges are one step, how they are written, and what of the
//! answer is whose.

mod groups;

use std::sync::Arc;

use redis::{Cmd, Value};

use self::groups::{Firsts, Group, Place};
use super::{
    KeyNames, Lanes,
    ask::{joined, number, texts},
    combine::{self, Flights},
    connect::Socket,
    counted::{Counted, Reader},
    fault::{Fault, answer_of},
    script::CHARGE,
};
use crate::{
    clock::millis,
    error::{Error, ErrorKind},
    key::Key,
    store::{
        key_names::CounterKeyKind,
        rate::{ChargeCommand, MAX_ITEMS_PER_CHARGE, ChargeItem, GcraRate, QuotaRule},
    },
};

/// Bytes and arguments that a counter takes, about.
const SIZE: (usize, usize) = (128, 8);

/// Where a lane's charges go.
pub(super) struct Charges {
    pub(super) lanes: Arc<Lanes>,
    pub(super) lane: usize,
    pub(super) keys: KeyNames,
}

/// A charge on its way.
pub(super) struct Asked {
    pub(super) charge: ChargeCommand,
    /// Of the tag.
    fnv: u64,
}

impl Asked {
    pub(super) fn new(charge: ChargeCommand) -> Self {
        Self { fnv: charge.tag.fnv(), charge }
    }

    pub(super) fn shard(&self) -> u16 {
        Key::shard_of(self.fnv)
    }

    fn has_the_tag_of(&self, other: &Self) -> bool {
        self.fnv == other.fnv && self.charge.tag == other.charge.tag
    }

    /// Whether both can be made in one step. Not looks and charges: a look is told what there was
    /// before. Not those with a penalty: each refusal would have to be told apart.
    fn is_another_of(&self, other: &Self) -> bool {
        let (a, b) = (&self.charge, &other.charge);
        (a.repetitions == 0) == (b.repetitions == 0)
            && (Arc::ptr_eq(&a.items, &b.items) || a.items == b.items)
            && a.items.iter().all(|item| item.penalty.is_none())
    }
}

pub(super) struct Load {
    command: Cmd,
    groups: Vec<Group>,
    places: Vec<Place>,
}

impl Flights for Charges {
    type Step = Asked;
    type Reply = Result<Counted, Error>;
    type Path = Socket;
    type Load = Load;

    const BATCH: usize = MAX_ITEMS_PER_CHARGE;
    // It would be charged twice.
    const REPEATABLE: bool = false;

    fn weight(step: &Asked) -> usize {
        step.charge.items.len()
    }

    fn replies(_: &Asked) -> usize {
        1
    }

    async fn path(&self) -> Result<Socket, Error> {
        self.lanes.socket(self.lane).await
    }

    fn load<'a>(&self, steps: impl Iterator<Item = &'a Asked> + Clone, by_text: bool) -> Load {
        let mut firsts = Firsts::default();
        let places = steps.map(|step| firsts.place(step)).collect();
        let command = command(&self.keys, &firsts.groups, by_text);
        let groups = firsts.groups.into_iter().map(|(_, group)| group).collect();
        Load { command, groups, places }
    }

    async fn send(
        &self,
        path: &mut Socket,
        load: &Load,
    ) -> Result<Vec<Self::Reply>, combine::Fault> {
        let answer = path.connection.send_packed_command(&load.command).await;
        match answer_of(path, answer) {
            Ok(reply) => load.divide(reply).map_err(combine::Fault::Failed),
            Err((Fault::NoScript, _)) => Err(combine::Fault::NoScript),
            Err((Fault::NotRun, _)) => Err(combine::Fault::NotRun),
            Err((Fault::Broken, _)) => Err(combine::Fault::Broken),
            Err((fault, error)) => Err(combine::Fault::Failed(fault.explain(CHARGE.name, error))),
        }
    }

    fn late(&self, path: &Socket) {
        path.timed_out();
    }
}

impl Load {
    /// To each charge its own.
    #[expect(clippy::indexing_slicing, reason = "places are those of the groups that were counted")]
    fn divide(&self, reply: Value) -> Result<Vec<Result<Counted, Error>>, Error> {
        let odd = || Error::new(ErrorKind::Protocol, CHARGE.name);
        let Value::BulkString(packed) = reply else { return Err(odd()) };
        let mut reader = Reader::of(&packed)?;
        let mut group = |group: &Group| reader.read(group.words, group.times, group.fixed);
        if let [only] = &*self.groups {
            let counted = group(only)?;
            return Ok(self.places.iter().map(|place| place.of(&counted)).collect());
        }
        // As many as there are: collected as results, nobody knows how many that will be.
        let mut counted = Vec::with_capacity(self.groups.len());
        for each in &self.groups {
            counted.push(group(each)?);
        }
        Ok(self.places.iter().map(|place| place.of(&counted[place.group])).collect())
    }
}

/// The call of these steps, in this order. One server takes steps of any shards in one call; in a cluster they
/// are of one.
fn command(keys: &KeyNames, groups: &[(&Asked, Group)], by_text: bool) -> Cmd {
    let counters: usize = groups.iter().map(|(step, _)| step.charge.items.len()).sum();
    let names: usize = groups.iter().map(|(step, _)| names(&step.charge)).sum();
    let script = if by_text { ["EVAL", CHARGE.code] } else { ["EVALSHA", CHARGE.sha()] };
    let mut out =
        Cmd::with_capacity(3 + SIZE.1 * counters, script[1].len() + 64 + SIZE.0 * counters);
    texts(&mut out, script);
    let never = groups.first().and_then(|(step, _)| keys.slot_guard_key(step.shard()));
    number(&mut out, (names + never.iter().len()) as u64);
    for (step, _) in groups {
        write_keys(keys, step, &mut out);
    }
    never.iter().for_each(|parts| joined(&mut out, parts));
    write_all_args(groups, &mut out);
    out
}

/// What is charged as the one before it, by one fixed window, is told in one number with those that follow.
fn write_all_args(groups: &[(&Asked, Group)], out: &mut Cmd) {
    let (mut last, mut alike) = (None, 0);
    for (step, group) in groups {
        let terms = fixed(&step.charge);
        if terms.is_some() && terms == last && group.times == 1 {
            alike += 1;
            continue;
        }
        write_alike(&mut alike, out);
        write_args(&step.charge, group.times, out);
        last = terms;
    }
    write_alike(&mut alike, out);
}

fn write_alike(alike: &mut u64, out: &mut Cmd) {
    if *alike > 0 {
        texts(out, ["="]);
        number(out, std::mem::take(alike));
    }
}

/// Rule and cost of a charge that is no more than one fixed window.
fn fixed(charge: &ChargeCommand) -> Option<(QuotaRule, u64)> {
    match &*charge.items {
        [ChargeItem { rule: rule @ QuotaRule::Fixed { .. }, cost, penalty: None, .. }] => Some((*rule, *cost)),
        _ => None,
    }
}

fn names(charge: &ChargeCommand) -> usize {
    charge.items.iter().map(|item| 1 + usize::from(item.penalty.is_some())).sum()
}

fn write_keys(keys: &KeyNames, step: &Asked, out: &mut Cmd) {
    let (tag, shard) = (&step.charge.tag, step.shard());
    for item in &*step.charge.items {
        let (algorithm, of) = (item.rule.algorithm(), (&*item.policy, &item.subject));
        joined(out, &keys.counter_parts(tag, shard, CounterKeyKind::spent_units(algorithm), of));
        if item.penalty.is_some() {
            joined(out, &keys.counter_parts(tag, shard, CounterKeyKind::refusals(algorithm), of));
        }
    }
}

fn write_args(charge: &ChargeCommand, times: u64, out: &mut Cmd) {
    if let Some((rule, cost)) = fixed(charge) {
        write_counter(&rule, cost, out);
        number(out, times);
        return;
    }
    texts(out, ["m"]);
    number(out, charge.items.len() as u64);
    number(out, times);
    for item in &*charge.items {
        write_counter(&item.rule, item.cost, out);
        let (after, block) = item.penalty.map_or((0, 0), |p| (p.after_refusals.max(1), millis(p.block_for)));
        number(out, after.into());
        number(out, block);
    }
}

/// One counter, as `rate.lua` reads it: what it counts, and how much is asked of it.
pub(super) fn write_counter(rule: &QuotaRule, cost: u64, out: &mut Cmd) {
    // More than any limit: it is refused, and Lua can count it.
    let units = cost.min(crate::store::rate::MAX_UNITS + 1);
    match *rule {
        QuotaRule::Fixed { limit, window } => {
            texts(out, ["f"]);
            [limit, millis(window), units].iter().for_each(|n| number(out, *n));
        }
        QuotaRule::Sliding { limit, window } => {
            texts(out, ["s"]);
            [limit, millis(window), units].iter().for_each(|n| number(out, *n));
        }
        QuotaRule::Gcra { limit, window, burst } => {
            let pace = GcraRate::new(limit, window, burst);
            texts(out, ["g"]);
            let numbers = [pace.max_debt, millis(window), pace.units_to_parts(cost)];
            numbers.iter().for_each(|n| number(out, *n));
            [pace.parts_per_unit, pace.parts_per_tick, pace.tick_us].iter().for_each(|n| number(out, *n));
        }
    }
}
