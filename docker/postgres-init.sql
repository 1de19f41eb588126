-- Runs once, when PostgreSQL's volume is empty. A role for each server: neither can read the other's tables, none is superuser.
\set ON_ERROR_STOP on
\getenv password POSTGRES_PASSWORD
CREATE ROLE prefect LOGIN PASSWORD :'password';
CREATE DATABASE prefect OWNER prefect;
REVOKE CONNECT ON DATABASE prefect FROM PUBLIC;
CREATE ROLE mlflow LOGIN PASSWORD :'password';
CREATE DATABASE mlflow OWNER mlflow;
REVOKE CONNECT ON DATABASE mlflow FROM PUBLIC;
