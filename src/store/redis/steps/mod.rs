//! Each typed step as its script call: arguments in, typed reply out.

mod apart;
mod deferred;
#[cfg(any(test, feature = "fsck"))]
#[path = "../../fsck/redis.rs"]
mod fsck;
mod jobs;
mod line;
mod listed;
mod pending;
mod rate;
mod runs;
mod shards;
mod tasks;
mod turns;
mod workers;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::future::BoxFuture;

pub(crate) use self::rate::Together;
use super::{Redis, listen::Listener};
#[cfg(any(test, feature = "fsck"))]
use crate::store::fsck::{FsckFound, FsckPart};
use crate::{
    key::Key,
    store::{
        backend::{
            Acquire, Acquired, Backend, Charge, Charging, Counter, GaveBack, Mode, Node, Renewal,
            SettleCharge, State, Step, Still, Token,
        },
        hints::Hints,
    },
};

type Args = Vec<Vec<u8>>;

impl Backend for Redis {
    fn spaces(&self) -> Vec<Arc<str>> {
        self.lanes.incarnation().spaces()
    }

    fn identify(&self) -> Step<'_, Arc<str>> {
        Box::pin(self.do_identify())
    }

    fn deadline(&self) -> Duration {
        self.deadline
    }

    fn acquire_all(&self, calls: &[Acquire]) -> Step<'_, Option<Vec<Acquired>>> {
        Box::pin(self.do_acquire_all(calls.to_vec()))
    }

    fn acquire(&self, call: Acquire) -> Step<'_, Acquired> {
        Box::pin(self.do_acquire(call))
    }

    fn release(&self, key: Key, me: Token, mode: Mode) -> Step<'_, GaveBack> {
        Box::pin(self.do_release(key, me, mode))
    }

    fn send_release(&self, key: Key, me: Token, mode: Mode) -> Option<Step<'static, GaveBack>> {
        self.do_send_release(key, me, mode)
    }

    fn pass(&self, me: Token, mode: Mode, next: Acquire) -> Step<'_, (GaveBack, Acquired)> {
        Box::pin(self.do_pass(me, mode, next))
    }

    fn still(&self, key: Key, me: Token) -> Step<'_, Option<Still>> {
        Box::pin(self.do_still(key, me))
    }

    fn downgrade(&self, key: Key, me: Token, lease: Duration) -> Step<'_, bool> {
        Box::pin(self.do_downgrade(key, me, lease))
    }

    fn silences(&self) -> u64 {
        self.lanes.silences()
    }

    fn is_apart(&self) -> bool {
        self.keys.are_apart()
    }

    fn renew(&self, items: Vec<Renewal>) -> Step<'_, Vec<bool>> {
        Box::pin(self.do_renew(items))
    }

    fn raise_fence(&self, key: Key, me: Token, fence: u64) -> Step<'_, bool> {
        Box::pin(self.do_raise_fence(key, me, fence))
    }

    fn charge(&self, call: Charge) -> Charging<'_> {
        self.do_charge(call)
    }

    fn settle_charge(&self, call: SettleCharge) -> Step<'_, Vec<State>> {
        Box::pin(self.do_settle_charge(call))
    }

    fn reset_charges(&self, tag: Key, counters: Vec<Counter>) -> Step<'_, ()> {
        Box::pin(self.do_reset_charges(tag, counters))
    }

    fn limiters(&self, node: Node, lease: Duration) -> Step<'_, usize> {
        Box::pin(self.do_limiters(node, lease))
    }

    fn servers(&self) -> u64 {
        self.lanes.incarnation().count()
    }

    fn replicated(&self, shard: u16, wanted: u32, since: u64) -> Step<'_, u32> {
        Box::pin(self.do_replicated(shard, wanted, since))
    }

    #[cfg(any(test, feature = "fsck"))]
    fn fsck(&self, part: FsckPart, mend: bool) -> Step<'_, FsckFound> {
        Box::pin(self.do_fsck(part, mend))
    }

    fn ping(&self) -> Step<'_, ()> {
        Box::pin(self.do_ping())
    }

    fn reaches(&self, shard: u16) -> Step<'_, ()> {
        Box::pin(self.do_reaches(shard))
    }

    fn on_new_server(&self, tell: Weak<dyn Fn() + Send + Sync>) {
        self.lanes.on_new_server(tell);
    }

    fn listen(&self, node: Node, hints: &Arc<Hints>) -> Option<BoxFuture<'static, ()>> {
        let listener = Listener {
            target: self.target.clone(),
            keys: self.keys.clone(),
            node,
            connect_within: self.deadline * 4,
            servers: self.lanes.incarnation().changes(),
            jobs: hints.jobs_wanted(),
        };
        Some(Box::pin(listener.run(hints)))
    }
}

fn number(n: u64) -> Vec<u8> {
    n.to_string().into_bytes()
}
