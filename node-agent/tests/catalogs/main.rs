//! Catalogs that are told over their own API: real routers and the real LiteLLM in front of real guards, files that their readers' own parsers read,
//! and servers that do everything wrong.

mod files;
mod litellm;
mod proxy;
mod routers;
mod served;
mod webhooks;
mod wrong;
