//! Requests that have ended, and their keys, where there is no more room.

use lockgate_tests::{Answer, Case, Request, Site, eventually};

use super::{Job, accepted};

/// The route keeps one byte of what has ended in each shard, and so only the newest; its owner is the user.
fn evicting(site: &Site, key: &str, query: &str) -> Request {
    let sent = site.post(&format!("/evicting/7?{query}")).header("x-user", "ada");
    sent.header("idempotency-key", key)
}

fn asked(site: &Site, job: &Job, user: &str) -> [Request; 5] {
    let response = format!("{}/response", job.location);
    let all = [
        site.get(&job.location),
        site.get(&job.location).header("prefer", "wait=5"),
        site.get(&job.location).header("accept", "text/event-stream"),
        site.get(&response),
        site.delete(&job.location),
    ];
    all.map(|request| if user.is_empty() { request } else { request.header("x-user", user) })
}

#[track_caller]
fn gone(answer: Answer) -> Answer {
    let answer = answer.expect(410);
    let problem = answer.problem();
    assert_eq!(problem["type"], "urn:lockgate:problem:no-longer-kept", "{problem}");
    answer
}

async fn is_done(site: &Site, job: &Job) {
    eventually("it to end", async || {
        let answer = site.get(&job.location).header("x-user", "ada").send().await;
        answer.expect(200).json()["state"] == "done"
    })
    .await;
}

pub(crate) async fn what_was_evicted_is_gone_for_its_owner_alone(case: Case) {
    let (site, other) = (case.site().await, case.site().await);
    let hold = site.hold("/orders/7/pay?tag=hold").await;
    let first = accepted(evicting(&site, "one", "tag=one").send().await);
    let second = accepted(evicting(&site, "two", "tag=two").send().await);
    let _ = hold.let_go().await.expect(200);
    is_done(&site, &second).await;
    for site in [&site, &other] {
        for request in asked(site, &first, "ada") {
            let answer = gone(request.send().await);
            assert_eq!(answer.problem()["state"], "done", "{answer:?}");
        }
        let unknown = site.get("/mine/00112233445566778899aabbccddeeff00").send().await.expect(404);
        for request in ["bob", ""].into_iter().flat_map(|user| asked(site, &first, user)) {
            assert_eq!(request.send().await.expect(404).body, unknown.body);
        }
        // It has run, and a retry is told so.
        let _ = gone(evicting(site, "one", "tag=one").send().await);
    }
    assert_eq!(case.desk.tags(), ["hold", "one", "two"]);
}

pub(crate) async fn what_ran_at_once_is_evicted_and_does_not_run_again(case: Case) {
    let site = case.site().await;
    for key in ["one", "two"] {
        let _ = evicting(&site, key, &format!("tag={key}")).send().await.expect(200);
    }
    let _ = gone(evicting(&site, "one", "tag=one").send().await);
    let kept = evicting(&site, "two", "tag=two").send().await;
    assert_eq!(kept.json()["state"], "done", "{kept:?}");
    let kept = accepted(kept);
    // Others have what they have, whatever one of them does.
    let bob = site.post("/evicting/7?tag=bob").header("x-user", "bob");
    let _ = bob.header("idempotency-key", "one").send().await.expect(200);
    for request in asked(&site, &kept, "") {
        let _ = request.send().await.expect(404);
    }
    assert_eq!(case.desk.tags(), ["one", "two", "bob"]);
}

pub(crate) async fn a_key_too_many_is_refused_and_old_ones_are_known(case: Case) {
    let site = case.site().await;
    let send = |user: &str, key: &str| {
        let sent = site.post(&format!("/few-keys/7?tag={user}-{key}")).header("x-user", user);
        sent.header("idempotency-key", key).send()
    };
    let refused = async |key: &str| {
        let answer = send("ada", key).await.expect(429);
        let _ = answer.retry_after();
        let problem = answer.problem();
        assert_eq!(problem["type"], "urn:lockgate:problem:too-many-idempotency-keys", "{problem}");
    };
    let _ = send("ada", "one").await.expect(200);
    refused("two").await;
    let known = send("ada", "one").await;
    assert_eq!(accepted(known).document_of(&site, "ada").await["state"], "done");
    let _ = send("bob", "two").await.expect(200);
    // Whether it would run at once or later; and what has no key runs.
    let hold = site.hold("/orders/7/pay?tag=hold").await;
    refused("two").await;
    let _ = accepted(send("ada", "one").await);
    let plain = site.post("/few-keys/7?tag=plain").header("x-user", "ada");
    let plain = accepted(plain.send().await);
    let _ = hold.let_go().await.expect(200);
    is_done(&site, &plain).await;
    assert_eq!(case.desk.tags(), ["ada-one", "bob-two", "hold", "plain"]);
}

impl Job {
    async fn document_of(&self, site: &Site, user: &str) -> serde_json::Value {
        site.get(&self.location).header("x-user", user).send().await.expect(200).json()
    }
}
