//! What goes on beside the calls where a master may be replaced: lanes give signs of life, and the words of sentinels are
//! heard.
//!
//! One task a store, from when it is made until it is dropped. Should its runtime end before, connections are made anew
//! where they would have been asked for a sign of life (`connect::life`), and words are missed: after a master stood
//! still that costs time alone. After a failover that somebody asked for, or one by sentinels that do not see what
//! clients see, nothing stood still, and the words are what there is: a subscription may be away just then, so with each
//! round of signs the sentinels are asked as well.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::{StreamExt as _, future::join_all};
use tokio::{runtime::Handle, task::JoinHandle, time::timeout};

use super::{
    Lanes,
    listen::Pause,
    target::{Sentinels, Target},
};

/// Until it is known how long lanes may be silent.
const AT_FIRST: Duration = Duration::from_millis(500);

pub(super) struct Watch(JoinHandle<()>);

impl Watch {
    pub(super) fn of(target: &Target, lanes: &Arc<Lanes>, deadline: Duration) -> Option<Self> {
        let sentinels = match target {
            Target::Sentinel(sentinels) => Some(sentinels.clone()),
            Target::Cluster(_) => None,
            Target::One(_) => return None,
            #[cfg(feature = "bb8-redis")]
            Target::Pool(_) => return None,
        };
        let lanes = Arc::downgrade(lanes);
        let watch = async move {
            let all = sentinels.iter().flat_map(|all| (0..all.number()).map(move |n| (all, n)));
            let words = all.map(|(sentinels, number)| hear(sentinels, number, deadline));
            // Sentinels that do not answer keep no lane waiting for its sign of life.
            let looks = look(lanes.clone(), sentinels.as_ref(), deadline);
            tokio::join!(join_all(words), beat(lanes), looks);
        };
        Some(Self(Handle::try_current().ok()?.spawn(watch)))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn beat(lanes: Weak<Lanes>) {
    while let Some(alive) = lanes.upgrade() {
        let pause = alive.beat().await.unwrap_or(AT_FIRST);
        drop(alive);
        tokio::time::sleep(pause).await;
    }
}

/// As often as lanes are asked for signs of life.
async fn look(lanes: Weak<Lanes>, sentinels: Option<&Sentinels>, deadline: Duration) {
    let Some(sentinels) = sentinels else { return };
    while let Some(pause) = lanes.upgrade().map(|alive| alive.pause()) {
        tokio::time::sleep(pause.unwrap_or(AT_FIRST)).await;
        let _ = timeout(deadline * 2, sentinels.look()).await;
    }
}

/// For ever. After a silence somebody looks, since words may have been missed.
async fn hear(sentinels: &Sentinels, number: usize, deadline: Duration) {
    let mut pause = Pause::default();
    loop {
        let words = timeout(deadline * 2, sentinels.words(number)).await;
        let heard = matches!(words, Ok(Ok(_)));
        if let Ok(Ok(mut words)) = words {
            let _ = timeout(deadline * 2, sentinels.look()).await;
            while let Some(message) = words.next().await {
                sentinels.heard(&message);
            }
        }
        pause.note(heard);
        pause.sleep().await;
    }
}
