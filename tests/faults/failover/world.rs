//! Where a master can go: one that sentinels watch over, or one of a cluster.

use lockgate_tests::{Replicated, Sentinels, Server, patient_store};

use super::LOCKS;

pub(super) const NAMESPACE: &str = "x";

/// A master, the replica that takes its place, and those who see to that.
pub(super) enum World {
    Sentinels(Sentinels),
    Cluster(Replicated),
}

impl World {
    pub(super) async fn sentinels() -> Self {
        Self::Sentinels(Sentinels::start().await)
    }

    pub(super) async fn cluster() -> Self {
        Self::Cluster(Replicated::start().await)
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::Sentinels(all) => all.url(NAMESPACE),
            Self::Cluster(all) => all.url(NAMESPACE),
        }
    }

    pub(super) fn master(&mut self) -> &mut Server {
        match self {
            Self::Sentinels(all) => &mut all.master,
            Self::Cluster(all) => &mut all.master,
        }
    }

    pub(super) fn successor(&self) -> &Server {
        match self {
            Self::Sentinels(all) => &all.replica,
            Self::Cluster(all) => &all.replica,
        }
    }

    /// Whether all that say who is the master say that it is the successor.
    pub(super) async fn all_left_the_old_one(&self) -> bool {
        match self {
            Self::Sentinels(all) => all.all_left_the_old_one().await,
            Self::Cluster(all) => all.all_left_the_old_one().await,
        }
    }

    /// The old master, which was killed, is started again, empty: it is to be a replica.
    pub(super) async fn comes_back(&mut self) {
        match self {
            Self::Sentinels(all) => all.old_one_comes_back().await,
            Self::Cluster(all) => all.comes_back().await,
        }
    }

    /// Names of locks that the master has.
    pub(super) async fn locks(&self) -> [String; LOCKS] {
        let master = match self {
            Self::Sentinels(_) => return ["a", "b", "c", "d"].map(str::to_owned),
            Self::Cluster(all) => &all.master,
        };
        let store = patient_store(&self.url()).await;
        let mut connection = master.connection().await;
        let mut found = Vec::new();
        for name in (0..64).map(|n| format!("lock-{n}")) {
            let guard = store.lock(&*name).acquire().await.expect("it is free");
            let mut keys = redis::cmd("KEYS");
            let keys = keys.arg(format!("lg:1:{NAMESPACE}:*}}:h:*"));
            let here: Vec<String> = keys.query_async(&mut connection).await.expect("an answer");
            guard.release().await;
            if !here.is_empty() {
                found.push(name);
            }
            if let Ok(all) = found.clone().try_into() {
                return all;
            }
        }
        panic!("the master has {} locks of 64", found.len())
    }
}
