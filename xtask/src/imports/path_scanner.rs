//! Scanner for paths in Rust source text. It skips comments and strings, and expands groups.

/// Path in the source, as far as it can be resolved without compiling.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PathReference {
    pub(super) line: usize,
    /// Number of inline modules that enclose the path.
    inline_depth: usize,
    pub(super) segments: Vec<String>,
    pub(super) alias: Option<String>,
}

impl PathReference {
    /// Returns the first name below the crate root in this path, resolved from `module`.
    pub(super) fn target_module(&self, module: &[String]) -> Option<String> {
        let (first, rest) = self.segments.split_first()?;
        if first == "crate" {
            return rest.first().cloned();
        }
        let ups = self.segments.iter().take_while(|segment| *segment == "super").count();
        let ups = ups.checked_sub(self.inline_depth)?;
        if ups == 0 {
            return None;
        }
        let base = module.len().checked_sub(ups)?;
        match module[..base].first() {
            Some(room) => Some(room.clone()),
            None => self.segments.iter().find(|segment| *segment != "super").cloned(),
        }
    }
}

/// Returns every path that starts at `crate`, `super` or `self`, with groups expanded.
pub(super) fn find_paths(text: &str) -> Vec<PathReference> {
    let tokens = tokenize(&blank_comments_and_strings(text));
    let mut found = Vec::new();
    let mut braces = 0;
    let mut inline: Vec<usize> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let next = tokens.get(at + 1).map(|token| token.1.as_str());
        match tokens[at].1.as_str() {
            "crate" | "super" | "self" if next == Some("::") => {
                at = scan_path_tree(&tokens, at, &[], inline.len(), &mut found);
                continue;
            }
            "mod" if tokens.get(at + 2).is_some_and(|token| token.1 == "{") => {
                inline.push(braces);
                at += 1;
            }
            "{" => braces += 1,
            "}" => {
                braces = braces.saturating_sub(1);
                if inline.last() == Some(&braces) {
                    inline.pop();
                }
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Reads one path or one branch of a group and returns the position of its end.
fn scan_path_tree(
    tokens: &[LineToken],
    start: usize,
    prefix: &[String],
    inside: usize,
    found: &mut Vec<PathReference>,
) -> usize {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.1.as_str());
    let mut segments = prefix.to_vec();
    let mut at = start;
    loop {
        if text(at) == "{" {
            at += 1;
            while !matches!(text(at), "}" | "") {
                at = scan_path_tree(tokens, at, &segments, inside, found);
                if text(at) == "," {
                    at += 1;
                } else if text(at) != "}" {
                    return at;
                }
            }
            return at + 1;
        }
        // `use a::{self}` is a path to `a`.
        if text(at) != "self" || segments.is_empty() {
            segments.push(text(at).to_owned());
        }
        let line = tokens.get(at).map_or(0, |token| token.0);
        at += 1;
        let next = text(at + 1);
        if text(at) == "::" && (next == "{" || next == "*" || is_identifier(next)) {
            at += 1;
            continue;
        }
        let alias = (text(at) == "as").then(|| text(at + 1).to_owned());
        at += if alias.is_some() { 2 } else { 0 };
        found.push(PathReference { line, inline_depth: inside, segments, alias });
        return at;
    }
}

/// Line number, and an identifier or a punctuation mark.
type LineToken = (usize, String);

fn tokenize(code: &str) -> Vec<LineToken> {
    let mut tokens: Vec<LineToken> = Vec::new();
    for (at, line) in code.lines().enumerate() {
        let mut rest = line;
        while let Some(first) = rest.chars().next() {
            let length = if is_identifier_char(first) {
                rest.find(|one| !is_identifier_char(one)).unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            let (token, after) = rest.split_at(length);
            if !token.trim().is_empty() {
                tokens.push((at + 1, token.to_owned()));
            }
            rest = after;
        }
    }
    tokens
}

fn is_identifier(token: &str) -> bool {
    token.chars().next().is_some_and(is_identifier_char)
}

fn is_identifier_char(one: char) -> bool {
    one.is_alphanumeric() || one == '_'
}

/// Blanks comments and the contents of string and character literals; lines keep their numbers.
pub(super) fn blank_comments_and_strings(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skip = comment_length(rest).or_else(|| literal_length(rest, code.chars().next_back()));
        let length = skip.unwrap_or(first.len_utf8());
        let (taken, after) = rest.split_at(length);
        if skip.is_some() {
            code.extend(taken.chars().map(|one| if one == '\n' { '\n' } else { ' ' }));
        } else {
            code.push_str(taken);
        }
        rest = after;
    }
    code
}

/// Length of the comment at the start of the text.
fn comment_length(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if !text.starts_with("/*") {
        return None;
    }
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let step = match &text.as_bytes()[at..] {
            [b'/', b'*', ..] => {
                depth += 1;
                2
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                2
            }
            _ => 1,
        };
        at += step;
        if depth == 0 {
            return Some(at);
        }
    }
    Some(text.len())
}

/// Length of the string or character literal at the start of the text. A lifetime is neither.
fn literal_length(text: &str, before: Option<char>) -> Option<usize> {
    let in_word = before.is_some_and(is_identifier_char);
    if let Some(raw) = text.strip_prefix('r').filter(|_| !in_word || before == Some('b')) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let close = format!("\"{}", "#".repeat(hashes));
            let start = hashes + 2;
            let end = text[start..].find(&close).map_or(text.len(), |at| start + at + close.len());
            return Some(end);
        }
    }
    let quote = text.chars().next().filter(|first| matches!(first, '"' | '\''))?;
    let mut inner = text.char_indices().skip(1);
    if quote == '\'' {
        let (_, first) = inner.next()?;
        let (at, second) = inner.next()?;
        if first != '\\' {
            return (second == '\'').then_some(at + 1);
        }
    }
    let mut escaped = false;
    for (at, one) in inner {
        match one {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if one == quote => return Some(at + 1),
            _ => {}
        }
    }
    Some(text.len())
}
