//! Answers HTTP requests for metrics.
//!
//! Each connection carries one request and has a time limit, and the number of connections is
//! limited. A separate thread encodes the metrics, not the one that runs the read path's ticker.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::endpoint::AsyncListener;
use super::{ExpositionFormat, SnapshotFn, encode};

/// Connections at a time; further ones wait.
const MAX_CONNECTIONS: usize = 16;

/// The longest that a connection may last.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// The largest request, bytes: the smallest limit that hyper accepts.
const MAX_REQUEST_BYTES: usize = 8192;

const INDEX_TEXT: &str =
    "This fanfs daemon serves a mounted volume. Metrics for Prometheus: /metrics\n";

/// Accepts and serves connections.
pub(super) async fn accept_loop(listener: AsyncListener, look: SnapshotFn) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut is_reported = false;
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        let accepted = match &listener {
            AsyncListener::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                tokio::spawn(serve_connection(stream, Arc::clone(&look), place));
            }),
            AsyncListener::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                tokio::spawn(serve_connection(stream, Arc::clone(&look), place));
            }),
        };
        match accepted {
            Ok(()) => is_reported = false,
            Err(error) => {
                if !is_reported {
                    tracing::warn!(%error, "cannot accept a connection for metrics; retrying");
                    is_reported = true;
                }
                // The process may have no descriptors left.
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn serve_connection<S>(stream: S, look: SnapshotFn, _place: OwnedSemaphorePermit)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answer = service_fn(move |request: Request<Incoming>| {
        let look = Arc::clone(&look);
        async move { Ok::<_, Infallible>(respond(&request, look).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(MAX_REQUEST_BYTES)
        .serve_connection(TokioIo::new(stream), answer);
    match tokio::time::timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a request for metrics failed"),
        Err(_) => tracing::debug!("a request for metrics took too long"),
    }
}

async fn respond(request: &Request<Incoming>, look: SnapshotFn) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    if !matches!(path, "/" | "/metrics" | "/healthz") {
        return plain_text_response(StatusCode::NOT_FOUND, "not found\n".to_owned());
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refused =
            plain_text_response(StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n".to_owned());
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match path {
        "/" => plain_text_response(StatusCode::OK, INDEX_TEXT.to_owned()),
        "/healthz" => plain_text_response(StatusCode::OK, "ok\n".to_owned()),
        _ => {
            let accepts = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
            let form = negotiate_format(accepts.unwrap_or_default());
            match encode_snapshot(look, form).await {
                Ok(content) => typed_response(StatusCode::OK, content, form.media_type()),
                Err(error) => {
                    plain_text_response(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))
                }
            }
        }
    }
}

async fn encode_snapshot(look: SnapshotFn, form: ExpositionFormat) -> io::Result<String> {
    let write = move || encode::encode_metrics(&look(), form);
    tokio::task::spawn_blocking(write).await.map_err(io::Error::other)
}

fn plain_text_response(status: StatusCode, content: String) -> Response<Full<Bytes>> {
    typed_response(status, content, "text/plain; charset=utf-8")
}

fn typed_response(
    status: StatusCode,
    content: String,
    media_type: &'static str,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(content)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// The format that an `Accept` header prefers; the Prometheus text format if it does not say.
fn negotiate_format(accepts: &str) -> ExpositionFormat {
    let liking = |name: &str| {
        let ranges = accepts.split(',').filter_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            let is_it = parts.next()?.eq_ignore_ascii_case(name);
            let quality = parts.find_map(|part| part.strip_prefix("q="));
            let quality = quality.map_or(1.0, |quality| quality.parse::<f32>().unwrap_or(0.0));
            is_it.then_some(quality)
        });
        ranges.fold(0.0, f32::max)
    };
    let open = liking("application/openmetrics-text");
    match open > 0.0 && open >= liking("text/plain") {
        true => ExpositionFormat::OpenMetrics,
        false => ExpositionFormat::PrometheusText,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_negotiation_picks_the_preferred_format() {
        // The headers of Prometheus 2.42 and of 3.
        let old = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;\
                   version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let new = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                   text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,*/*;q=0.2";
        for (accepts, form) in [
            (old, ExpositionFormat::OpenMetrics),
            (new, ExpositionFormat::OpenMetrics),
            ("", ExpositionFormat::PrometheusText),
            ("*/*", ExpositionFormat::PrometheusText),
            ("text/plain", ExpositionFormat::PrometheusText),
            (
                "application/openmetrics-text;q=0, text/plain;q=0.1",
                ExpositionFormat::PrometheusText,
            ),
            ("application/openmetrics-text;q=0.1, text/plain", ExpositionFormat::PrometheusText),
            ("Application/OpenMetrics-Text", ExpositionFormat::OpenMetrics),
        ] {
            assert_eq!(negotiate_format(accepts), form, "{accepts}");
        }
    }
}
