//! A store on a pool that the application has.

use std::time::Duration;

use bb8_redis::RedisConnectionManager;

use super::{
    GIVEN_BACK, SECOND, eventually, granted, hears_of_locks, in_line,
    proxy::{Proxy, Redirect},
    server::Server,
    usable,
};
use crate::{
    error::ErrorKind,
    lock::{AcquireError, ReleaseStatus},
    store::Store,
};

type Pool = bb8::Pool<RedisConnectionManager>;

async fn pool(server: &Server, size: u32) -> Pool {
    pool_to(&format!("redis://127.0.0.1:{}/", server.port()), size).await
}

async fn pool_to(url: &str, size: u32) -> Pool {
    let manager = RedisConnectionManager::new(url).expect("an address");
    bb8::Pool::builder().max_size(size).build(manager).await.expect("it runs")
}

async fn store(pool: &Pool) -> Store {
    let builder = Store::from_pool(pool.clone()).namespace("test").call_timeout(5 * SECOND);
    builder.connect().await.expect("the settings are right")
}

#[tokio::test]
async fn connections_are_taken_and_given_back() {
    let server = Server::start().await;
    let pool = pool(&server, 4).await;
    let store = store(&pool).await;
    for n in 0..20 {
        let guard = store.lock(n.to_string()).acquire().await.expect("it is free");
        assert_eq!(guard.release().await, ReleaseStatus::Released);
    }
    let state = pool.state();
    assert_eq!(state.connections - state.idle_connections, 2, "{state:?}");
    assert!(store.shutdown(GIVEN_BACK).await);
    drop(store);
    eventually("all to be back in the pool", async || {
        pool.state().connections == pool.state().idle_connections
    })
    .await;
}

/// As tests that share a store, each on a runtime of its own.
#[test]
fn the_first_charge_after_the_runtime_of_the_pool_has_ended_is_made_in_the_store() {
    let one_thread =
        || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (server, store) = one_thread().block_on(async {
        let server = Server::start().await;
        let store = store(&pool(&server, 4).await).await;
        drop(store.lock("warm").acquire().await.expect("it is free"));
        (server, store)
    });
    let limit = store.rate_limiter(crate::Quota::requests(9).per(60 * SECOND));
    for left in [8, 7, 6] {
        let decision = one_thread().block_on(limit.check("k", 1)).expect("it is there");
        assert!(!decision.is_local(), "decided without the store: {decision:?}");
        assert_eq!(decision.remaining(), left);
    }
    drop(server);
}

#[tokio::test]
async fn a_waiter_is_served_with_and_without_messages() {
    let server = Server::start().await;
    let pool = pool(&server, 8).await;
    let deaf = store(&pool).await;
    let builder = Store::from_pool(pool.clone()).namespace("test").pubsub_url(&server.url());
    let hears = builder.connect().await.expect("the settings are right");
    for (store, listens) in [(deaf, false), (hears, true)] {
        let held = store.lock("x").acquire().await.expect("it is free");
        let other = store.as_another_process();
        let waiter = crate::store::spawn(other.lock("x").wait(20 * SECOND).acquire());
        in_line(&store, 1).await;
        if listens {
            hears_of_locks(&server).await;
        }
        assert_eq!(held.release().await, ReleaseStatus::Released);
        let guard = waiter.await.expect("no panic").expect("it is served");
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        let subscribers: String = server.ask(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
        assert_eq!(subscribers.lines().count() > 0, listens, "{subscribers}");
    }
}

#[tokio::test]
async fn a_server_that_was_away_is_found_again() {
    let mut server = Server::start().await;
    let pool = pool(&server, 4).await;
    let store = store(&pool).await;
    server.kill();
    match store.lock("x").acquire().await {
        Err(AcquireError::Fault(error)) => assert_ne!(error.kind(), ErrorKind::Config),
        other => panic!("{other:?}"),
    }
    server.restart().await;
    usable(&store).await;
    drop(store.lock("y").acquire().await.expect("it is free"));
}

/// Its address leads to the successor; the pool's connections do not.
#[tokio::test]
async fn a_demoted_master_is_left_though_the_pool_keeps_it() {
    let (master, successor) = (Server::start().await, Server::start().await);
    let way = Redirect::to(master.port()).await;
    let manager = RedisConnectionManager::new(format!("redis://127.0.0.1:{}/", way.port()));
    let pool = bb8::Pool::builder().max_size(4).build(manager.expect("an address")).await;
    let store = store(&pool.expect("it runs")).await;
    drop(store.lock("x").acquire().await.expect("it is free"));
    way.leads_to(successor.port());
    master.command(&["REPLICAOF", "127.0.0.1", &successor.port().to_string()]).await;
    usable(&store).await;
    drop(store.lock("y").acquire().await.expect("it is free"));
    assert!(successor.calls().await > 0);
}

/// The library's own limit is half a second.
#[tokio::test]
async fn an_answer_is_waited_for_until_the_deadline() {
    let server = Server::start().await;
    let store = store(&pool(&server, 4).await).await;
    drop(store.lock("warm").acquire().await.expect("it is free"));
    server.freeze();
    let thaws = async {
        tokio::time::sleep(SECOND).await;
        server.thaw();
    };
    let (acquired, ()) = tokio::join!(store.lock("x").acquire(), thaws);
    drop(acquired.expect("it is free"));
}

/// Also if the deadline is longer than the library's own limit, and if the time for a connection is as long as that.
#[tokio::test]
async fn connections_that_are_half_open_are_left_and_not_put_back() {
    let server = Server::start().await;
    for deadline in [250, 700].map(Duration::from_millis) {
        let proxy = Proxy::to(server.port()).await;
        let pool = pool_to(&proxy.url(), 4).await;
        // Idle ones, too.
        let all = [pool.get().await, pool.get().await, pool.get().await, pool.get().await];
        assert!(all.iter().all(Result::is_ok));
        drop(all);
        let builder = Store::from_pool(pool).namespace("test").call_timeout(deadline);
        let store = builder.connect().await.expect("the settings are right");
        drop(granted(&store.lock(format!("before {deadline:?}"))).await);
        proxy.forget();
        usable(&store).await;
        drop(granted(&store.lock(format!("after {deadline:?}"))).await);
    }
}

#[tokio::test]
async fn what_a_pool_has_is_not_given_again() {
    let server = Server::start().await;
    let pool = pool(&server, 4).await;
    let builder = || Store::from_pool(pool.clone()).namespace("test");
    for wrong in [builder().login("me", "pw"), builder().database(1), builder().pubsub_url("x")] {
        let error = wrong.connect().await.expect_err("it is no good");
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    }
}
