//! Flights of `charge.lua` on one lane: which charges are one step, how they are written, and what of the
//! answer is whose.

use std::sync::Arc;

use redis::{Cmd, Value};

use super::{
    Keys, Lanes,
    ask::{joined, number, texts},
    combine::{self, Flights},
    connect::Socket,
    counted::{Counted, shape},
    fault::{Fault, answer_of},
    script::CHARGE,
};
use crate::{
    clock::millis,
    error::{Error, ErrorKind},
    key::Key,
    store::{
        keys::Kind,
        rate::{Charge, ITEMS, Item, Pace, Rule},
    },
};

/// Bytes and arguments that a counter takes, about.
const SIZE: (usize, usize) = (128, 8);

/// Where a lane's charges go.
pub(super) struct Charges {
    pub(super) lanes: Arc<Lanes>,
    pub(super) lane: usize,
    pub(super) keys: Keys,
}

/// A charge on its way.
pub(super) struct Asked {
    pub(super) charge: Charge,
    /// Of the tag.
    fnv: u64,
}

impl Asked {
    pub(super) fn new(charge: Charge) -> Self {
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
        (a.times == 0) == (b.times == 0)
            && (Arc::ptr_eq(&a.items, &b.items) || a.items == b.items)
            && a.items.iter().all(|item| item.penalty.is_none())
    }
}

/// One step of the script: charges that are the same, and come one after the other as far as their
/// counters are concerned.
struct Group {
    /// Numbers that are answered.
    words: usize,
    times: u64,
}

/// Which group a charge is in, and after how many others of it.
struct Place {
    group: usize,
    after: u64,
    times: u32,
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

    const BATCH: usize = ITEMS;
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

/// The groups of a flight, in order; by tag, which one was the last.
///
/// Charges under different tags have no counter in common, so only those under the same tag have an order that
/// counts: a charge joins the last group of its tag, or begins a new one.
#[derive(Default)]
struct Firsts<'a> {
    groups: Vec<(&'a Asked, Group)>,
    /// By hash of the tag, with the next free slot for those that meet. Made for the second group.
    last: Vec<u8>,
}

/// More than twice as many as there are groups.
const SLOTS: usize = 256;
const NONE: u8 = u8::MAX;

impl<'a> Firsts<'a> {
    fn place(&mut self, step: &'a Asked) -> Place {
        let times = step.charge.times;
        let (slot, last) = self.last_of(step);
        let group = match last {
            Some(group) if step.is_another_of(self.groups[group].0) => group,
            _ => self.add(step, slot),
        };
        let after = self.groups[group].1.times;
        self.groups[group].1.times += u64::from(times);
        Place { group, after, times }
    }

    fn last_of(&self, step: &Asked) -> (usize, Option<usize>) {
        if self.last.is_empty() {
            let only = !self.groups.is_empty() && step.has_the_tag_of(self.groups[0].0);
            return (0, only.then_some(0));
        }
        let mut slot = slot_of(step);
        while self.last[slot] != NONE {
            let group = usize::from(self.last[slot]);
            if step.has_the_tag_of(self.groups[group].0) {
                return (slot, Some(group));
            }
            slot = (slot + 1) % SLOTS;
        }
        (slot, None)
    }

    fn add(&mut self, step: &'a Asked, slot: usize) -> usize {
        let group = self.groups.len();
        let words = 1 + step.charge.items.iter().map(shape).sum::<usize>();
        self.groups.push((step, Group { words, times: 0 }));
        // A flight has fewer than 255 groups.
        let number = u8::try_from(group).unwrap_or(NONE);
        match group {
            0 => {}
            1 => {
                self.last = vec![NONE; SLOTS];
                self.last[slot_of(self.groups[0].0)] = 0;
                let (slot, _) = self.last_of(step);
                self.last[slot] = number;
            }
            _ => self.last[slot] = number,
        }
        group
    }
}

fn slot_of(step: &Asked) -> usize {
    // All of a lane have the last bits in common.
    usize::try_from((step.fnv >> 8) % SLOTS as u64).unwrap_or(0)
}

impl Load {
    /// To each charge its own.
    fn divide(&self, reply: Value) -> Result<Vec<Result<Counted, Error>>, Error> {
        let odd = || Error::new(ErrorKind::Protocol, CHARGE.name);
        let Value::Array(words) = reply else { return Err(odd()) };
        let mut words = words.into_iter();
        let Some(Value::Int(now)) = words.next() else { return Err(odd()) };
        let now_us = u64::try_from(now).map_err(|_| odd())?;
        let group = |group: &Group| Counted::read(&mut words, group.words, now_us);
        if let [only] = &*self.groups {
            let counted = Counted::read(&mut words, only.words, now_us)?;
            return Ok(self.places.iter().map(|place| place.of(&counted)).collect());
        }
        let counted: Vec<_> = self.groups.iter().map(group).collect::<Result<_, _>>()?;
        Ok(self.places.iter().map(|place| place.of(&counted[place.group])).collect())
    }
}

impl Place {
    /// What it would have been told if it had been sent by itself, after those before it.
    fn of(&self, group: &Result<Counted, Error>) -> Result<Counted, Error> {
        let mut counted = group.clone()?;
        let until = (self.after + u64::from(self.times)).min(counted.admitted);
        counted.later = counted.admitted - until;
        counted.admitted = until.saturating_sub(self.after);
        Ok(counted)
    }
}

/// The call of these steps, in this order. One server takes steps of any shards in one call.
fn command(keys: &Keys, groups: &[(&Asked, Group)], by_text: bool) -> Cmd {
    let counters: usize = groups.iter().map(|(step, _)| step.charge.items.len()).sum();
    let names: usize = groups.iter().map(|(step, _)| names(&step.charge)).sum();
    let script = if by_text { ["EVAL", CHARGE.code] } else { ["EVALSHA", CHARGE.sha()] };
    let mut out =
        Cmd::with_capacity(3 + SIZE.1 * counters, script[1].len() + 64 + SIZE.0 * counters);
    texts(&mut out, script);
    number(&mut out, names as u64);
    for (step, _) in groups {
        write_keys(keys, step, &mut out);
    }
    for (step, group) in groups {
        write_args(&step.charge, group.times, &mut out);
    }
    out
}

fn names(charge: &Charge) -> usize {
    charge.items.iter().map(|item| 1 + usize::from(item.penalty.is_some())).sum()
}

fn write_keys(keys: &Keys, step: &Asked, out: &mut Cmd) {
    let (tag, shard) = (&step.charge.tag, step.shard());
    for item in &*step.charge.items {
        let (algorithm, of) = (item.rule.algorithm(), (&*item.policy, &item.subject));
        joined(out, &keys.counter_in_parts(tag, shard, Kind::spent(algorithm), of));
        if item.penalty.is_some() {
            joined(out, &keys.counter_in_parts(tag, shard, Kind::refusals(algorithm), of));
        }
    }
}

fn write_args(charge: &Charge, times: u64, out: &mut Cmd) {
    if let [Item { rule: rule @ Rule::Fixed { .. }, cost, penalty: None, .. }] = &*charge.items {
        write_counter(rule, *cost, out);
        number(out, times);
        return;
    }
    texts(out, ["m"]);
    number(out, charge.items.len() as u64);
    number(out, times);
    for item in &*charge.items {
        write_counter(&item.rule, item.cost, out);
        let (after, block) = item.penalty.map_or((0, 0), |p| (p.after.max(1), millis(p.block)));
        number(out, after.into());
        number(out, block);
    }
}

/// One counter, as `rate.lua` reads it: what it counts, and how much is asked of it.
pub(super) fn write_counter(rule: &Rule, cost: u64, out: &mut Cmd) {
    // More than any limit: it is refused, and Lua can count it.
    let units = cost.min(crate::store::rate::MOST + 1);
    match *rule {
        Rule::Fixed { limit, window } => {
            texts(out, ["f"]);
            [limit, millis(window), units].iter().for_each(|n| number(out, *n));
        }
        Rule::Sliding { limit, window } => {
            texts(out, ["s"]);
            [limit, millis(window), units].iter().for_each(|n| number(out, *n));
        }
        Rule::Gcra { limit, window, burst } => {
            let pace = Pace::of(limit, window, burst);
            texts(out, ["g"]);
            let numbers = [pace.most, millis(window), pace.parts(cost)];
            numbers.iter().for_each(|n| number(out, *n));
            [pace.unit, pace.drain, pace.tick].iter().for_each(|n| number(out, *n));
        }
    }
}
