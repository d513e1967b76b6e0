//! Stub, to be replaced.
use super::{backend::*, hints::Hints};
use crate::{clock::Clock, key::Key};
use std::{sync::Arc, time::Duration};
#[derive(Debug)]
pub(crate) struct Memory;
impl Memory {
    pub(crate) fn new(_: Clock) -> Self {
        Self
    }
}
impl Backend for Memory {
    fn acquire(&self, _: Acquire) -> Step<'_, Acquired> {
        todo!()
    }
    fn release(&self, _: Key, _: Token) -> Step<'_, GaveBack> {
        todo!()
    }
    fn renew(&self, _: Vec<Renewal>) -> Step<'_, Vec<bool>> {
        todo!()
    }
    fn charge(&self, _: Vec<Charge>) -> Step<'_, Charged> {
        todo!()
    }
    fn enqueue(&self, _: Enqueue) -> Step<'_, Enqueued> {
        todo!()
    }
    fn claim(&self, _: Claim) -> Step<'_, Claimed> {
        todo!()
    }
    fn settle(&self, _: Settle) -> Step<'_, bool> {
        todo!()
    }
    fn cancel(&self, _: JobId, _: Duration) -> Step<'_, Option<JobState>> {
        todo!()
    }
    fn job(&self, _: JobId) -> Step<'_, Option<JobView>> {
        todo!()
    }
    fn heads(&self, _: Vec<Key>) -> Step<'_, Vec<Option<JobId>>> {
        todo!()
    }
    fn due(&self, _: Vec<u16>, _: usize) -> Step<'_, Vec<Due>> {
        todo!()
    }
    fn watch(&self, _: Node, _: Duration, _: usize) -> Step<'_, Vec<u16>> {
        todo!()
    }
    fn present(&self, _: Node, _: Duration) -> Step<'_, usize> {
        todo!()
    }
    fn ping(&self) -> Step<'_, ()> {
        todo!()
    }
    fn listen(&self, _: Node, _: &Arc<Hints>) {
        todo!()
    }
}
