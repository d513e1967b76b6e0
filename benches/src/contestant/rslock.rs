//! rslock: one attempt after the other, each after a random pause below the retry delay.

use std::time::Duration;

use rslock::{Lock, LockManager};

use super::{Contestant, TTL};
use crate::outcome::Outcome;

pub(crate) struct Rslock(LockManager);

/// Its default is to give up after 3 tries; here it waits, as everybody does. At 1 ms it draws from 0..1,
/// which is a spin; below that its range is empty and it would panic.
pub(crate) fn manager(port: u16, delay: Duration) -> LockManager {
    let mut manager = LockManager::new(vec![format!("redis://127.0.0.1:{port}/")]);
    manager.set_retry(u32::MAX, delay.max(Duration::from_millis(1)));
    manager
}

impl Contestant for Rslock {
    type Lock = String;
    type Guard = Lock;

    async fn connect(port: u16, pause: Duration) -> Outcome<Self> {
        Ok(Self(manager(port, pause)))
    }

    fn lock(&self, name: &str) -> String {
        name.to_owned()
    }

    async fn acquire(&self, key: &String) -> Outcome<Lock> {
        Ok(self.0.lock(key.as_str(), TTL).await?)
    }

    async fn release(&self, lock: Lock) -> Outcome<()> {
        self.0.unlock(&lock).await;
        Ok(())
    }
}
