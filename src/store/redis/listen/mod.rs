//! Messages from other processes, on a connection of their own.
//!
//! It is made at the first wait, and made again whenever it breaks; after each time everybody is told
//! to look again, since messages may have been missed. It is made again too when a lane has met another
//! server: the one before may live on, and hear nothing of what is said on its successor.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::StreamExt as _;
use tokio::{sync::watch, task::JoinHandle};

use super::target::Target;
use crate::store::hints::{Hint, Hints};

/// Longest pause between two attempts to subscribe.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Listener {
    pub(super) target: Target,
    pub(super) wake: String,
    pub(super) events: String,
    pub(super) connect_within: Duration,
    pub(super) servers: watch::Receiver<u64>,
}

/// Runs until the store handle is gone.
pub(super) fn spawn(listener: Listener, hints: &Arc<Hints>) -> JoinHandle<()> {
    let (weak, life) = (Arc::downgrade(hints), hints.life());
    tokio::spawn(async move { listener.run(weak, life).await })
}

impl Listener {
    async fn run(mut self, hints: Weak<Hints>, mut life: watch::Receiver<()>) {
        let mut pause = Duration::from_millis(20);
        loop {
            tokio::select! {
                // The sender is never used: this resolves when the store handle is dropped.
                _ = life.changed() => return,
                heard = self.listen(&hints) => {
                    if heard {
                        pause = Duration::from_millis(20);
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE);
        }
    }

    /// Delivers until the connection breaks; false if it could not be made. Another server ends it at once.
    async fn listen(&mut self, hints: &Weak<Hints>) -> bool {
        self.servers.mark_unchanged();
        let channels = [self.wake.as_str(), &self.events];
        let subscribe = self.target.subscribe(&channels);
        let Ok(Ok(mut messages)) = tokio::time::timeout(self.connect_within, subscribe).await
        else {
            return false;
        };
        deliver(hints, Some(Hint::Resync));
        loop {
            let message = tokio::select! {
                biased;
                // It ends when the store handle does, as `life` tells.
                Ok(()) = self.servers.changed() => return true,
                message = messages.next() => message,
            };
            let Some(message) = message else {
                return true;
            };
            let Ok(text) = std::str::from_utf8(message.get_payload_bytes()) else {
                continue;
            };
            if message.get_channel_name() == self.events {
                Hint::parse_events(text).for_each(|hint| deliver(hints, Some(hint)));
            } else {
                deliver(hints, Hint::parse(text));
            }
        }
    }
}

fn deliver(hints: &Weak<Hints>, hint: Option<Hint>) {
    if let (Some(hints), Some(hint)) = (hints.upgrade(), hint) {
        hints.deliver(hint);
    }
}
