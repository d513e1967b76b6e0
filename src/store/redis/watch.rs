//! What goes on beside the calls where sentinels watch: their words are heard, and lanes give signs of life.
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
        let Target::Sentinel(sentinels) = target else { return None };
        let (sentinels, lanes) = (sentinels.clone(), Arc::downgrade(lanes));
        let watch = async move {
            let words = (0..sentinels.number()).map(|number| hear(&sentinels, number, deadline));
            tokio::join!(join_all(words), beat(lanes, &sentinels, deadline));
        };
        Some(Self(Handle::try_current().ok()?.spawn(watch)))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn beat(lanes: Weak<Lanes>, sentinels: &Sentinels, deadline: Duration) {
    while let Some(alive) = lanes.upgrade() {
        let (pause, _) = tokio::join!(alive.beat(), timeout(deadline * 2, sentinels.look()));
        let pause = pause.unwrap_or(AT_FIRST);
        drop(alive);
        tokio::time::sleep(pause).await;
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
