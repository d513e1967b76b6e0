//! Rows of a listing that the store returns in pages.

/// Reads at most `limit` rows, page by page. `read_page` gets the start of a page and the most rows
/// of it, and returns the rows and the start of the next page.
pub(crate) async fn read_rows<T, C>(
    limit: usize,
    start: C,
    read_page: impl AsyncFn(C, usize) -> Result<(Vec<T>, Option<C>), lockgate::Error>,
) -> Result<Vec<T>, lockgate::Error> {
    let (mut rows, mut next) = (Vec::new(), Some(start));
    while rows.len() < limit
        && let Some(from) = next.take()
    {
        let (page, following) = read_page(from, limit - rows.len()).await?;
        rows.extend(page);
        next = following;
    }
    // A search may return more than it was asked for.
    rows.truncate(limit);
    Ok(rows)
}
