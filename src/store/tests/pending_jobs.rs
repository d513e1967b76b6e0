//! Listings of queued and running jobs.

use std::time::Duration;

use super::{
    on_every_store,
    store_harness::{
        LONG_TIME, StoreHarness, enqueue_command, keys_of_one_shard, new_token,
        retryable_enqueue_command, settle_command, test_key,
    },
};
use crate::{
    Key,
    store::backend::{
        EnqueueCommand, EnqueueOutcome, JobId, JobPolicy, JobState, JobView, OnFailure,
        PendingCursor, Settlement,
    },
};

on_every_store!(
    waiting_and_running_jobs_are_listed,
    pages_of_any_size_list_each_job_once,
    jobs_of_many_locks_are_all_listed,
    unchanged_jobs_are_listed_while_others_change,
    listed_pending_job_has_no_bodies,
);

/// Reads all pages of at most `page_size` jobs.
async fn read_pages(rig: &StoreHarness, page_size: usize) -> Vec<Vec<(JobId, JobView)>> {
    let (mut cursor, mut pages) = (Some(PendingCursor::default()), Vec::new());
    while let Some(mark) = cursor {
        let page = rig.list_pending(test_key().shard(), mark, page_size).await;
        assert!(page.jobs.len() <= page_size, "{}", page.jobs.len());
        assert!(
            page.next_mark.is_none_or(
                |next_mark| next_mark > mark || next_mark.scan_cursor != mark.scan_cursor
            ),
            "it goes on"
        );
        cursor = page.next_mark;
        pages.push(page.jobs);
    }
    pages
}

async fn read_all_pending(rig: &StoreHarness) -> Vec<(JobId, JobView)> {
    read_pages(rig, 100).await.concat()
}

fn sorted_job_ids(mut jobs: Vec<(JobId, JobView)>) -> Vec<JobId> {
    jobs.sort_by(|(one, _), (other, _)| one.cmp(other));
    jobs.into_iter().map(|(id, _)| id).collect()
}

async fn waiting_and_running_jobs_are_listed(rig: &StoreHarness) {
    let [one, two, three] = keys_of_one_shard::<3>();
    assert_eq!(read_all_pending(rig).await, []);
    let (running, waiting) = (rig.enqueue_job(&one).await, rig.enqueue_job(&one).await);
    let run = new_token();
    rig.start_run(&one, &running, &run).await;
    let policy = JobPolicy { delay: LONG_TIME, ..enqueue_command(&two).policy };
    let delayed = EnqueueCommand { policy, ..enqueue_command(&two) };
    let delayed_id = delayed.id.clone();
    assert_eq!(rig.enqueue(delayed).await, EnqueueOutcome::Stored { position: 0 });
    // A failed job that others may overtake until its retry.
    let call = retryable_enqueue_command(&three);
    let policy = JobPolicy { on_failure: OnFailure::Skip, ..call.policy };
    let (call, failed) = (EnqueueCommand { policy, ..call }, new_token());
    let retried = call.id.clone();
    rig.enqueue(call).await;
    rig.start_run(&three, &retried, &failed).await;
    let settlement = Settlement::Retry { delay: LONG_TIME, reason: "failed" };
    assert!(rig.settle(settle_command(&three, &retried, &failed, settlement)).await);
    // Two ended jobs, which are not listed.
    let (ended, cancelled) = (rig.enqueue_job(&three).await, rig.enqueue_job(&three).await);
    assert_eq!(rig.cancel(&cancelled).await, Some(JobState::Cancelled));
    let run = new_token();
    rig.start_run(&three, &ended, &run).await;
    assert!(rig.finish_run(&three, &ended, &run).await);

    let listed = read_all_pending(rig).await;
    assert_eq!(listed.len(), 4, "{listed:?}");
    for (id, state, position, lock, is_due) in [
        (&running, JobState::Running, Some(1), &one, true),
        (&waiting, JobState::Queued, Some(2), &one, true),
        (&delayed_id, JobState::Queued, None, &two, false),
        (&retried, JobState::Queued, None, &three, false),
    ] {
        let (_, job) = listed.iter().find(|(other, _)| other == id).expect("it is there");
        assert_eq!((job.state, job.position), (state, position), "{job:?}");
        assert_eq!(job.history.lock.as_ref(), Some(lock));
        assert_eq!(job.history.due_in.is_none(), is_due, "{job:?}");
        // The listing agrees with a lookup by id.
        let job_by_id = rig.job_view(id).await.expect("the job is stored");
        assert_eq!(
            (job_by_id.state, job_by_id.position, job_by_id.attempts, &job_by_id.reason),
            (job.state, job.position, job.attempts, &job.reason)
        );
    }
    let (_, job) = listed.iter().find(|(other, _)| *other == retried).expect("it is there");
    assert_eq!((job.reason.as_deref(), job.attempts), (Some("failed"), 1));
    let index_of = |id| listed.iter().position(|(other, _)| other == id);
    assert!(index_of(&running) < index_of(&waiting), "in the order of their line");
}

async fn pages_of_any_size_list_each_job_once(rig: &StoreHarness) {
    let keys = keys_of_one_shard::<4>();
    let mut expected = Vec::new();
    for (index, key) in keys.iter().enumerate() {
        for _ in 0..3 * index {
            expected.push(rig.enqueue_job(key).await);
        }
        let policy = JobPolicy { delay: LONG_TIME, ..enqueue_command(key).policy };
        let delayed = EnqueueCommand { policy, ..enqueue_command(key) };
        expected.push(delayed.id.clone());
        rig.enqueue(delayed).await;
    }
    expected.sort();
    for page_size in [1, 2, 3, 5, 22, 100] {
        let pages = read_pages(rig, page_size).await;
        // A full page may be the last one, so only the others must be full.
        let (last, full_pages) = pages.split_last().expect("one at least");
        assert!(full_pages.iter().all(|page| page.len() == page_size), "{page_size}");
        assert!(last.len() <= page_size);
        assert_eq!(sorted_job_ids(pages.concat()), expected, "by {page_size}");
    }
    // Other shards have listings of their own.
    let other_shard = (test_key().shard() + 1) % 64;
    let none = rig.list_pending(other_shard, PendingCursor::default(), 100).await;
    assert_eq!((none.jobs.len(), none.next_mark), (0, None));
}

/// More locks than Redis stores in a compact encoding, and than one scan step returns.
async fn jobs_of_many_locks_are_all_listed(rig: &StoreHarness) {
    let keys = keys_of_one_shard::<300>();
    let mut expected = Vec::new();
    for key in &keys {
        let caps = crate::store::backend::StorageLimits::NONE;
        let call = EnqueueCommand { limits: caps, ..enqueue_command(key) };
        expected.push(call.id.clone());
        rig.enqueue(call).await;
    }
    expected.sort();
    for page_size in [7, 100] {
        assert_eq!(
            sorted_job_ids(read_pages(rig, page_size).await.concat()),
            expected,
            "by {page_size}"
        );
    }
}

async fn unchanged_jobs_are_listed_while_others_change(rig: &StoreHarness) {
    let keys = keys_of_one_shard::<8>();
    let enqueue_all = async |keys: &[Key]| {
        let mut ids = Vec::new();
        for key in keys {
            ids.push(rig.enqueue_job(key).await);
        }
        ids
    };
    let cancelled = enqueue_all(&keys).await;
    let mut unchanged = enqueue_all(&keys).await;
    let (mut cursor, mut listed, mut index) = (Some(PendingCursor::default()), Vec::new(), 0);
    while let Some(mark) = cursor {
        let page = rig.list_pending(test_key().shard(), mark, 2).await;
        listed.extend(page.jobs.into_iter().map(|(id, _)| id));
        cursor = page.next_mark;
        if let Some(id) = cancelled.get(index) {
            assert_eq!(rig.cancel(id).await, Some(JobState::Cancelled));
            rig.enqueue_job(&keys[index]).await;
            rig.advance(Duration::from_millis(1)).await;
        }
        index += 1;
    }
    unchanged.retain(|id| !listed.contains(id));
    assert_eq!(unchanged, [], "all unchanged jobs are listed");
}

async fn listed_pending_job_has_no_bodies(rig: &StoreHarness) {
    let _ = rig.enqueue_job(&test_key()).await;
    let [(_, job)] = &read_all_pending(rig).await[..] else { panic!("one") };
    assert_eq!((&job.response, &job.history.webhook_event), (&None, &None));
}
